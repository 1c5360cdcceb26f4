//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// maxWrites is the most API writes for a task, from apply to Completed. A server looks every five minutes for
// checkpoints to verify, and what it finds is one more, whenever that is.
const maxWrites = 12

// Serial: a pod that is slow to start is reported with an extra status write.
var _ = Describe("the API writes of a task", Serial, func() {
	w := newWorld()

	It("are at most a dozen by Clew, from apply to Completed", func(ctx SpecContext) {
		task := w.newTask("frugal", replay(8, 50*time.Millisecond)...)
		task.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](0)
		task.Spec.CheckpointPolicy.BeforeRiskyTools = []clewv1.RiskyToolPattern{}
		w.create(ctx, task)
		w.untilState(ctx, "frugal", 2*time.Minute, clewv1.ReasonCompleted)
		w.untilRecorded(ctx, "frugal")
		Expect(w.untilListed(ctx, "frugal")).To(HaveLen(1), "only the last checkpoint was taken")

		writes := w.clewWrites()

		most := maxWrites
		if meta.FindStatusCondition(w.untilListed(ctx, "frugal")[0].Status.Conditions, clewv1.CheckpointIntact) != nil {
			most++ // it was verified meanwhile
		}
		AddReportEntry(fmt.Sprintf("%d API writes by Clew, from apply to Completed", len(writes)), strings.Join(writes, "\n"))
		Expect(len(writes)).To(BeNumerically("<=", most), "%v", writes)
	})
})

// auditEvent is a request, in the API server's audit log.
type auditEvent struct {
	Stage, Verb string
	User        struct{ Username string }
	Object      struct{ Resource, Subresource, Namespace, Name string } `json:"objectRef"`
	Ended       time.Time                                               `json:"stageTimestamp"`
}

// String says what was done to what.
func (e auditEvent) String() string {
	return strings.Join([]string{e.Verb, e.Object.Resource, e.Object.Subresource, e.Object.Name}, " ")
}

// audited returns the completed requests of Clew's own service accounts that are wanted, from the
// API server's audit log.
func audited(wanted func(auditEvent) bool) (all []auditEvent) {
	GinkgoHelper()
	file, err := os.Open(filepath.Join(clusterFolder(), "audit.log"))
	Expect(err).NotTo(HaveOccurred(), "open the API server's audit log")
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var e auditEvent
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Stage == "ResponseComplete" &&
			strings.HasPrefix(e.User.Username, "system:serviceaccount:"+systemNamespace+":") && wanted(e) {
			all = append(all, e)
		}
	}
	Expect(lines.Err()).To(Succeed())
	return all
}

// clewWrites lists the writes that Clew's own service accounts made in the world's namespace.
func (w *world) clewWrites() (writes []string) {
	GinkgoHelper()
	for _, e := range audited(func(e auditEvent) bool {
		return e.Object.Namespace == w.namespace && slices.Contains([]string{"create", "update", "patch", "delete"}, e.Verb)
	}) {
		writes = append(writes, e.String())
	}
	return writes
}
