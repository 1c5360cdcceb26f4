// Package e2e holds the end-to-end tests: real pods on a real node, agents
// that really run, and processes that really are killed. They read as what
// Clew promises to its users.
//
// They carry the build tag e2e and need a cluster with Clew installed, which
// `make test-e2e` brings up. CLEW_SOAK=1 runs the long versions; the tag soak adds
// those that have no short one. Processes are
// killed from the node itself, so the tests run on the machine of the
// development cluster.
//
// Each test has a namespace of its own and runs beside others. The two that
// disturb Clew itself come first, alone.
package e2e
