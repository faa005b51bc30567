"""The live view: a running simulator in the browser, by viser (extra `view3d`)."""
