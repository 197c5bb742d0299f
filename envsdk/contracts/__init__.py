"""What the parts of the house say to each other: tasks, turns, trajectories, failures."""
