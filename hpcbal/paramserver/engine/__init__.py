"""Executors at work: frames between ranks, the server's blocks, the worker's turns."""
