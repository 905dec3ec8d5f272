"""The layers of a session's isolation, applied in a forked child before any user code runs.

One file a layer, one public function a file. They run in the Python of any environment (3.9 and
newer) and in a process that is about to lose its rights: the standard library only, no threads, and
nothing imported from outside this package.
"""
