"""A result's winner in the forms that other programs take: `write` names them all, one file a family of them."""
