"""Changes of the user's code, outside of DataLoader's arguments."""

from loadtune.changes.change import CHANGES, Change, NotApplicableError, Situation, in_order
