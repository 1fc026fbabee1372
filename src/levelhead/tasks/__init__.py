"""What is learnt: the task protocol and one module or folder a task."""
