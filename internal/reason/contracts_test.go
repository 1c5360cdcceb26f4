package reason_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/reason"
)

// The guide to contracts, and the heading of its table.
const (
	guide   = "../../api/docs/contracts.md"
	heading = "\n## Transitions of a contract's tasks\n"
)

// guideRow is a row of the table: the reasons in each of its cells.
type guideRow struct {
	what                       string
	event, condition, timeline []string
}

// guideTable returns the rows of the guide's table.
func guideTable(t *testing.T) (rows []guideRow) {
	t.Helper()
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), heading)
	if !found {
		t.Fatalf("%s has no section %q", guide, strings.TrimSpace(heading))
	}
	names := func(cell string) (found []string) {
		for _, m := range regexp.MustCompile("`([A-Za-z]+)`").FindAllStringSubmatch(cell, -1) {
			found = append(found, m[1])
		}
		return found
	}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 6 || strings.HasPrefix(cells[1], "---") || strings.TrimSpace(cells[2]) == "Event" {
			continue
		}
		rows = append(rows, guideRow{strings.TrimSpace(cells[1]), names(cells[2]), names(cells[3]), names(cells[4])})
	}
	return rows
}

// elsewhere are the reasons of tasks that have nothing to do with many tasks, their limits and their
// ends: the page of the Task alone has them. Add a new reason either to the table of the guide or here.
func elsewhere() []string {
	return []string{
		// Rewinds, resumes, adoptions.
		v1alpha1.EventTaskAdopted, v1alpha1.EventNothingAdopted, v1alpha1.EventNotApplicable,
		v1alpha1.EventConversationMoved, v1alpha1.EventConversationMoveRefused, v1alpha1.EventFilesCopied, v1alpha1.EventWorkspaceRestored,
		v1alpha1.EventAgentSessionRefused, v1alpha1.ReasonHistoryStoreWentBack, v1alpha1.ReasonPositionNotFound,
		// Drift.
		v1alpha1.ReasonHeadMoved, v1alpha1.EventDriftPreserved, v1alpha1.EventDriftOverridden,
		// What keeps a pod, its workspace or its agent from working.
		v1alpha1.ReasonAgentTooOld, v1alpha1.ReasonAgentOptionsInvalid, v1alpha1.ReasonProgramNotFound, v1alpha1.ReasonProgramNotExecutable,
		v1alpha1.ReasonInvalidTemplate, v1alpha1.ReasonVolumeUnavailable, v1alpha1.ReasonImageUnavailable, v1alpha1.ReasonPodRefused,
		v1alpha1.ReasonDaemonUnavailable, v1alpha1.ReasonReplaced, v1alpha1.ReasonPromptNotFound,
		v1alpha1.ReasonSourceNotFound, v1alpha1.ReasonHistoryNotGranted, v1alpha1.ReasonSourceAmbiguous, v1alpha1.ReasonRepositoryMismatch,
		// Checkpoints, risky tools and messages.
		v1alpha1.EventFilesChanged, v1alpha1.EventRiskyToolGuarded, v1alpha1.EventRiskyToolUnguarded, v1alpha1.EventRiskyToolPatternInvalid,
		v1alpha1.ReasonCheckpointOfOther, v1alpha1.ReasonCheckpointNotReady, v1alpha1.EventCommitApproved, v1alpha1.EventUserMessage, v1alpha1.EventAgentMessage,
		// The history.
		v1alpha1.ReasonHistoryDeleted, v1alpha1.ReasonHistoryContinued, v1alpha1.ReasonHistoryGap, v1alpha1.ReasonLossAcknowledged,
		v1alpha1.ReasonHistoryUnavailable, v1alpha1.ReasonCorrupted, v1alpha1.ReasonSpoolDamaged, v1alpha1.EventHistoryExported,
		v1alpha1.EventHistoryImported, v1alpha1.EventEntriesLeftOut,
	}
}

// ofGuide reports whether a reason is a transition of a task that the guide or elsewhere has: not one
// about a checkpoint, of a daemon, or of the preparation of a workspace, which are another page's.
func ofGuide(r reason.Reason) bool {
	at := func(condition string) bool {
		return slices.Contains(r.On, reason.Place{Kind: "Task", Condition: condition})
	}
	if r.AboutCheckpoint || r.DaemonProblem || at(reason.Operation) && at(v1alpha1.TaskWorkspaceReady) && !at(reason.Timeline) {
		return false
	}
	return at(v1alpha1.TaskSucceeded) || at(reason.Timeline) || at(v1alpha1.TaskVolumeReleased) || at(v1alpha1.TaskVolumeSized) || at("status.attempts")
}

func TestTheGuideToContractsHasEveryTransition(t *testing.T) {
	var listed []string
	for _, row := range guideTable(t) {
		listed = slices.Concat(listed, row.event, row.condition, row.timeline)
	}
	if len(listed) < 60 {
		t.Fatalf("the table of %s has %d reasons; was its form changed?", guide, len(listed))
	}
	for _, r := range reason.All() {
		inGuide, other := slices.Contains(listed, r.Name), slices.Contains(elsewhere(), r.Name)
		switch {
		case inGuide && other:
			t.Errorf("%s is in the table of %s: take it out of elsewhere", r.Name, guide)
		case ofGuide(r) && !inGuide && !other:
			t.Errorf("%s is missing: add it to the table of %s, or to elsewhere if it has nothing to do with many tasks", r.Name, guide)
		}
	}
	for _, name := range slices.Concat(listed, elsewhere()) {
		if reason.Find(name).Meaning == "" {
			t.Errorf("there is no reason %s any more", name)
		}
	}
}

// An Event comes from an entry of status.history, which the timeline has too.
func TestEachCellOfTheGuideHasReasonsOfItsKind(t *testing.T) {
	decided := sources(t, "../plan")
	for _, row := range guideTable(t) {
		for _, name := range row.event {
			if !slices.Contains(row.timeline, name) {
				t.Errorf("%q: the Event %s is no entry of the timeline", row.what, name)
			}
		}
		for _, name := range row.timeline {
			if !slices.Contains(reason.Find(name).On, reason.Place{Kind: "Task", Condition: reason.Timeline}) {
				t.Errorf("%q: %s does not occur in the timeline", row.what, name)
			}
			// Entries of status.history are decided on in package plan.
			if emitted := decided[name]; emitted != slices.Contains(row.event, name) {
				t.Errorf("%q: package plan makes an entry %s: %v; it is listed as an Event: %v", row.what, name, emitted, !emitted)
			}
		}
		for _, name := range row.condition {
			if !slices.ContainsFunc(reason.Find(name).On, func(p reason.Place) bool { return p.Kind == "Task" && p.Condition != reason.Timeline }) {
				t.Errorf("%q: %s is the reason of no condition of a task", row.what, name)
			}
		}
	}
}

// sources returns the reasons whose constants a package uses.
func sources(t *testing.T, folder string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the files of %s are %q, error %v", folder, files, err)
	}
	used, byConstant := map[string]bool{}, constants(t)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`v1alpha1\.((?:Event|Reason)[A-Za-z]+)`).FindAllStringSubmatch(string(text), -1) {
			used[byConstant[m[1]]] = true
		}
	}
	return used
}
