// Package crash holds the tests that kill the manager at every write.
//
// A scenario uses every verb. Its chapters are run once, while everything is counted that the
// manager writes to the API server, to Postgres and to the gitstore. Then a chapter is run again
// for each of its writes, with the manager killed before the write leaves it, and once more with
// the manager killed when the write has taken effect and before it hears so. Another manager
// follows. In the end the objects, the rows and the branches are the same each time.
//
// The manager is the real program, the API server and Postgres are real, and two proxies between
// them count and kill. Only the nodes are played: see kubelet. The short form strikes a sample
// of the writes; CLEW_SOAK=1 strikes all.
package crash
