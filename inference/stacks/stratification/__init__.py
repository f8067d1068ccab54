"""The stratification stack, whose layers are poured on, drained and read by depth: see `op`."""
