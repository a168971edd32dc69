"""`loadtune run -- COMMAND`: the user's own script is the training process."""
