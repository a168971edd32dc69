"""What is trained: names, import paths and objects → dataset, model, loss, optimizer and step."""
