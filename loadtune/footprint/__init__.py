"""Where does memory go? A training step's account, layer by layer, without running it; and a script's, by line."""
