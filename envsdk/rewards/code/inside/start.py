"""The program inside the sandbox.

    python -I -S start.py cases            stdin: the job; runs the program once per case
    python -I -S start.py tests PROCESSES  stdin: the job; runs tests against the program in other processes

It is reached through the folder that holds this package, so that its modules have one name everywhere.
"""

import os
import sys

if __name__ == "__main__":
    folder = os.path.abspath(__file__)
    for _ in range(5):
        folder = os.path.dirname(folder)
    sys.path.insert(0, folder)
    if sys.argv[1] == "cases":
        from envsdk.rewards.code.inside import cases

        cases.run()
    else:
        from envsdk.rewards.code.inside import tests

        tests.run(int(sys.argv[2]))
