"""Changes of the user's code, outside of DataLoader's arguments."""

from loadtune.changes.change import CHANGES, Change, Situation, in_order
from loadtune.records.loading import NotApplicableError
