"""A child process that owns the device and runs the workload, and the controller's handle on it."""
