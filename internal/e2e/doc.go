// Package e2e holds the end-to-end specs: real pods on a real node, agents that
// really run, and processes that really are killed. They read as Clew's promises to its
// users.
//
// They have the build tag e2e and need a cluster with Clew installed, which
// `make test-e2e` brings up. CLEW_SOAK=1 runs them at full length; the tag soak adds
// those that have no short version, and the tag nodes those that lose a node of two (make
// test-nodes). Processes are killed from the node itself, so the
// specs run on the machine of the development cluster.
//
// Each spec has its own namespace and runs in parallel with others; those that disturb
// Clew itself are Serial and run alone, after the others. Specs wait by watching the objects
// of their namespace (see changes_test.go), since asking all the time would take the
// processor from the pods that they wait for. Labels select specs: kill
// (they kill processes or cut connections), agents (they run real agents), slow (they
// take a minute or more) and soak. A failed spec reports its tasks, events and logs;
// CLEW_E2E_KEEP=1 keeps its namespace.
package e2e
