"""Simulation of both loops without sockets, files, threads, Spark or time. A seed always gives the same run."""
