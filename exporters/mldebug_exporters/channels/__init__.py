"""Ways to tell somebody: one file each, by which `channels: {NAME: {kind: FILE}}` calls them."""
