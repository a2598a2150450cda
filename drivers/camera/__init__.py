"""Cameras: one file per device, over the protocol of `drivers.camera.base`."""
