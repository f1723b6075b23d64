//! Codecs for ONC RPC, NFSv3, MOUNT v3 and the portmapper.
