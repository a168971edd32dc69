"""What is trained: names, import paths and live objects become a dataset, a model, a loss and an optimizer.

In: a `WorkloadSpec` with names, and the caller's objects as bytes. Out: a `Workload` that can be trained, or a
`WorkloadError` that says what was found, what is allowed and what to do. Everything here needs torch and runs in the
training process.
"""
