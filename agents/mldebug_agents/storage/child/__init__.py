"""One child process that queries all mounts (free space, quotas, test writes); a mount that hangs blocks one thread of it and
nothing else.
"""
