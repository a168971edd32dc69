"""Changes of the user's code, outside of DataLoader's arguments."""

from loadtune.changes.remedies import REMEDIES, NotApplicableError, Remedy, Situation, in_order
