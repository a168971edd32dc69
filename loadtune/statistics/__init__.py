"""What may be said of figures that vary: rates, means, ratios and their intervals, and when to look. Pure."""
