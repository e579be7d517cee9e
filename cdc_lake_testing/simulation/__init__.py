"""Simulation: both loops without sockets, files, threads, Spark or time. A seed plays the same each time."""
