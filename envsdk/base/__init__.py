"""What every other wing stands on: settings, plug-ins, terminal, processes, network, files."""
