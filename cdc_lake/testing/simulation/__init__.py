"""Simulation: the receiver without sockets, files, threads or time. A seed plays the same each time."""
