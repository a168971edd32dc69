"""The winner of a result in forms that other programs read. `write` lists all forms; each family has its own file."""
