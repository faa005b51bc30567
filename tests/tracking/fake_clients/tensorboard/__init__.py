"""A client that does what the test says, in place of TensorBoard's: see `test_worker_processes`."""
