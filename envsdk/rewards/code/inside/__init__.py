"""What runs inside the sandbox. `start.py` is the program; it needs nothing but a Python, 3.10 or newer."""
