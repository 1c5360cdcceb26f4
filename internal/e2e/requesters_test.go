//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// as asks for something as another user, with the rights of an administrator.
func (w *world) as(user string, args ...string) {
	w.Helper()
	w.kubectl(append([]string{"--as=" + user, "--as-group=system:masters"}, args...)...)
}

func TestHistoryAndEventsNameWhoAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.newTask("asked", idle...))
	w.untilAgentRuns("asked", 2*time.Minute)
	w.as("ann", "patch", "tasks.clew.dev", "asked", "--type=merge", `--patch={"spec":{"operatingMode":"Suspended"}}`)
	w.untilState("asked", 2*time.Minute, clewv1.ReasonSuspended)
	first := w.untilListed("asked")[0].Name
	robot := "system:serviceaccount:" + w.namespace + ":robot"
	w.as(robot, "patch", "tasks.clew.dev", "asked", "--type=merge",
		fmt.Sprintf(`--patch={"spec":{"operatingMode":"Running","rewind":{"id":"back","to":{"checkpointRef":{"name":%q}}}}}`, first))
	if got := w.untilRewound("asked", "back", 3*time.Minute); got.Status.Rewind.RequestedBy != robot {
		t.Errorf("status.rewind was requested by %q", got.Status.Rewind.RequestedBy)
	}
	w.until("the timeline names them", time.Minute, func() error {
		actors := map[string]string{}
		for _, e := range w.timeline("asked") {
			actors[e.Reason] = e.Actor
		}
		if actors[clewv1.EventTaskSuspended] != "ann" || actors[clewv1.EventTaskRewound] != robot {
			return fmt.Errorf("the actors are %v", actors)
		}
		return nil
	})
	if notes := w.kubectl("get", "events", "-o", "jsonpath={.items[*].message}"); !strings.Contains(notes, "asked for by ann") || !strings.Contains(notes, "asked for by "+robot) {
		t.Errorf("the Events say %s", notes)
	}
}
