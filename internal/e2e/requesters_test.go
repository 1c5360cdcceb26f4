//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// as runs kubectl as another user, with the rights of an administrator.
func (w *world) as(ctx context.Context, user string, args ...string) {
	GinkgoHelper()
	w.kubectl(ctx, append([]string{"--as=" + user, "--as-group=system:masters"}, args...)...)
}

var _ = Describe("the requester of a suspension or a rewind", func() {
	w := newWorld()

	It("is named in the status, the timeline and the Events", func(ctx SpecContext) {
		w.create(ctx, w.newTask("asked", idle...))
		w.untilAgentRuns(ctx, "asked", 2*time.Minute)
		w.as(ctx, "ann", "patch", "tasks.clew.dev", "asked", "--type=merge", `--patch={"spec":{"operatingMode":"Suspended"}}`)
		w.untilState(ctx, "asked", 2*time.Minute, clewv1.ReasonSuspended)
		first := w.untilListed(ctx, "asked")[0].Name
		robot := "system:serviceaccount:" + w.namespace + ":robot"
		w.as(ctx, robot, "patch", "tasks.clew.dev", "asked", "--type=merge",
			fmt.Sprintf(`--patch={"spec":{"operatingMode":"Running","rewind":{"id":"back","to":{"checkpointRef":{"name":%q}}}}}`, first))
		Expect(w.untilRewound(ctx, "asked", "back", 3*time.Minute).Status.Rewind.RequestedBy).To(Equal(robot))
		Eventually(ctx, func() map[string]string {
			actors := map[string]string{}
			for _, e := range w.timeline(ctx, "asked") {
				actors[e.Reason] = e.Actor
			}
			return actors
		}).WithTimeout(time.Minute).WithPolling(between).Should(SatisfyAll(
			HaveKeyWithValue(clewv1.EventTaskSuspended, "ann"), HaveKeyWithValue(clewv1.EventTaskRewound, robot)), "the actors in the timeline")
		Eventually(ctx, func() []string { return w.events(ctx, func(e corev1.Event) string { return e.Message }) }).WithTimeout(time.Minute).Should(
			ContainElements(ContainSubstring("requested by ann"), ContainSubstring("requested by "+robot)), "the Events")
	})
})
