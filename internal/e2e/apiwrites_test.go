//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// maxWrites is what a task may cost from apply to Completed.
const maxWrites = 12

// Not parallel: a pod that is slow to come up has its trouble told of, in a write
// more.
func TestATaskCostsFewAPIWrites(t *testing.T) {
	w, g := newWorld(t), gomega.NewWithT(t)
	task := w.newTask("frugal", replay(8, 50*time.Millisecond)...)
	task.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](0)
	task.Spec.CheckpointPolicy.BeforeRiskyTools = []clewv1.RiskyToolPattern{}
	w.create(task)
	w.untilState("frugal", 2*time.Minute, clewv1.ReasonCompleted)
	w.untilSettled("frugal")
	g.Expect(w.untilListed("frugal")).To(gomega.HaveLen(1), "only the last checkpoint was taken")

	writes := w.clewWrites()

	t.Logf("%d API writes by Clew, from apply to Completed:\n%s", len(writes), strings.Join(writes, "\n"))
	g.Expect(len(writes)).To(gomega.BeNumerically("<=", maxWrites))
}

// clewWrites lists the writes that Clew's own service accounts made in the
// test's namespace, from the API server's audit log.
func (w *world) clewWrites() []string {
	w.Helper()
	file, err := os.Open(filepath.Join(clusterFolder(), "audit.log"))
	if err != nil {
		w.Fatalf("the API server's audit log: %v", err)
	}
	defer file.Close()
	var writes []string
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var event struct {
			Stage, Verb string
			User        struct{ Username string }
			ObjectRef   struct{ Resource, Subresource, Namespace, Name string }
			Response    struct{ Code int } `json:"responseStatus"`
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil || event.Stage != "ResponseComplete" {
			continue
		}
		write := slices.Contains([]string{"create", "update", "patch", "delete"}, event.Verb)
		own := strings.HasPrefix(event.User.Username, "system:serviceaccount:"+systemNamespace+":")
		if write && own && event.ObjectRef.Namespace == w.namespace {
			writes = append(writes, strings.Join([]string{event.Verb, event.ObjectRef.Resource, event.ObjectRef.Subresource, event.ObjectRef.Name}, " "))
		}
	}
	if err := lines.Err(); err != nil {
		w.Fatal(err)
	}
	return writes
}
