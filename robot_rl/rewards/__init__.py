"""Where rewards come from: the task's detector, a classifier of images, a pose, a person."""
