"""The format of Harbor: `folder.read_folder` reads a task."""
