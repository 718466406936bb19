//! How ranks find each other: unique ids, authenticated rendezvous, out-of-band exchange.
