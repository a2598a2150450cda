"""Networks that denoise a chunk of actions: one small file each, over one base."""
