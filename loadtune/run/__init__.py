"""Does what `decide` says: a run (`state`) and its stages."""
