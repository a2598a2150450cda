"""Camera drivers: one file per device, all implementing `drivers.camera.base.Camera`."""
