//go:build e2e && soak

package e2e

import "testing"

// Not parallel: it puts back what every task needs.
func TestATaskOutlivesAnOlderGitstore(t *testing.T) {
	outliveOlder(t, &volumeStore{component: "gitstore", workload: "statefulset/clew-gitstore"}, "gitstore", pick(1, 10))
}
