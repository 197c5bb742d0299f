"""What runs inside the sandbox. `start.py` is the program; it needs nothing but a Python, 3.9 or newer."""
