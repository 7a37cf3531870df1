"""What an executor does: frames between ranks, the server's blocks, the worker's turns."""
