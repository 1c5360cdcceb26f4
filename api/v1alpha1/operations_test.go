package v1alpha1_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func TestAManifestOfAFormerTaskIsAcceptedWithItsResumeAndRewind(t *testing.T) {
	task := created(t, builders.Task("made-anew", builders.Resume("a"), builders.Rewind("b", "made-anew-1")))
	task.Labels = map[string]string{"synced": "again"}
	must(t, server.Client.Update(t.Context(), task))
}

// No loss is acknowledged before it happens.
func TestOnlyLostRecordsCanBeAcknowledged(t *testing.T) {
	acknowledge := func(n int64) change {
		return spec(func(s *v1alpha1.TaskSpec) { s.Acknowledge = &v1alpha1.Acknowledgement{LostRecords: n} })
	}
	created(t, builders.Task("from-a-backup", acknowledge(1))) // it acknowledges nothing
	task := created(t, builders.Task("loses"))
	acknowledge(1)(task)
	expectRefused(t, server.Client.Update(t.Context(), task), "acknowledge.lostRecords is more than status.lostRecords")
	loses := func(n int64) {
		task = live(t, "loses")
		task.Status.LostRecords = n
		must(t, server.Client.Status().Update(t.Context(), task))
	}
	loses(29)
	acknowledge(30)(task)
	expectRefused(t, server.Client.Update(t.Context(), task), "acknowledge.lostRecords is more than status.lostRecords")
	for _, n := range []int64{28, 29} {
		acknowledge(n)(task)
		must(t, server.Client.Update(t.Context(), task))
	}
	loses(0) // the history store goes back, and counts again
	builders.Suspended(task)
	must(t, server.Client.Update(t.Context(), task))
	task.Spec.Acknowledge = nil
	must(t, server.Client.Update(t.Context(), task))
}

// Otherwise the manager would only see the number that has ended.
func TestAnEndedAcknowledgementCanBeSetAgainOnceTheManagerHasSeenItsRemoval(t *testing.T) {
	acknowledge := func(n int64) change {
		return spec(func(s *v1alpha1.TaskSpec) { s.Acknowledge = &v1alpha1.Acknowledgement{LostRecords: n} })
	}
	created(t, builders.Task("loses-again"))
	ended := func(n int64) *v1alpha1.Task {
		task := live(t, "loses-again")
		task.Status.LostRecords, task.Status.EndedAcknowledgement = 29, n
		must(t, server.Client.Status().Update(t.Context(), task))
		return task
	}
	task := ended(0)
	acknowledge(29)(task)
	must(t, server.Client.Update(t.Context(), task))
	task = ended(29)
	builders.Suspended(task) // what else is changed does not touch it
	must(t, server.Client.Update(t.Context(), task))
	for _, other := range []change{acknowledge(28), spec(func(s *v1alpha1.TaskSpec) { s.Acknowledge = nil })} {
		other(task)
		must(t, server.Client.Update(t.Context(), task))
		acknowledge(29)(task)
		expectRefused(t, server.Client.Update(t.Context(), task), "try again in a moment")
		task = live(t, "loses-again")
	}
	task = ended(0)
	acknowledge(29)(task)
	must(t, server.Client.Update(t.Context(), task))
}

func TestAResumeIsRefusedUnlessTheTaskHasStopped(t *testing.T) {
	asks := func(t *v1alpha1.Task) { builders.Running(t); t.Spec.Resume.Prompt = "And this?" }
	clean := func(t *v1alpha1.Task) { builders.Running(t); t.Spec.Resume.Mode = v1alpha1.ResumeClean }
	from := func(t *v1alpha1.Task) {
		builders.Running(t)
		t.Spec.Resume.Mode, t.Spec.Resume.CheckpointNumber = v1alpha1.ResumeFromCheckpoint, ptr.To[int64](1)
	}
	again := func(t *v1alpha1.Task) { builders.Running(t); t.Spec.Resume.Mode = v1alpha1.ResumeRestartPhase }
	leads := func(t *v1alpha1.Task) {
		t.Spec.Role, t.Spec.Contract = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "port"}
	}
	paused := func(t *v1alpha1.Task) { again(t); builders.Suspended(t) }
	cases := map[string]struct {
		status   metav1.ConditionStatus
		reason   string
		change   change
		sentence string
	}{
		"no status yet":      {"", "", builders.Running, "only a stopped task can be resumed"},
		"Preparing":          {metav1.ConditionUnknown, v1alpha1.ReasonPreparing, builders.Running, "only a stopped task can be resumed"},
		"Running":            {metav1.ConditionUnknown, v1alpha1.ReasonRunning, builders.Running, "only a stopped task can be resumed"},
		"Rewinding":          {metav1.ConditionUnknown, v1alpha1.ReasonRewinding, builders.Running, "only a stopped task can be resumed"},
		"Suspending":         {metav1.ConditionUnknown, v1alpha1.ReasonSuspending, builders.Running, "only a stopped task can be resumed"},
		"Stopping":           {metav1.ConditionUnknown, v1alpha1.ReasonStopping, builders.Running, "only a stopped task can be resumed"},
		"Completed":          {metav1.ConditionTrue, v1alpha1.ReasonCompleted, builders.Running, "a completed task continues only with a new prompt: set resume.prompt"},
		"Completed, asked":   {metav1.ConditionTrue, v1alpha1.ReasonCompleted, asks, ""},
		"Completed, clean":   {metav1.ConditionTrue, v1alpha1.ReasonCompleted, clean, "a completed task continues only with a new prompt"},
		"Completed, from 1":  {metav1.ConditionTrue, v1alpha1.ReasonCompleted, from, ""},
		"Running, clean":     {metav1.ConditionUnknown, v1alpha1.ReasonRunning, clean, "only a stopped task can be resumed"},
		"Running, from 1":    {metav1.ConditionUnknown, v1alpha1.ReasonRunning, from, "only a stopped task can be resumed"},
		"suspended, clean":   {metav1.ConditionUnknown, v1alpha1.ReasonSuspended, clean, ""},
		"suspended, from 1":  {metav1.ConditionUnknown, v1alpha1.ReasonSuspended, from, ""},
		"failed, clean":      {metav1.ConditionFalse, v1alpha1.ReasonAgentFailed, clean, ""},
		"rewound, from 1":    {metav1.ConditionUnknown, v1alpha1.ReasonRewound, from, ""},
		"Unschedulable":      {metav1.ConditionUnknown, v1alpha1.ReasonUnschedulable, builders.Running, "only a stopped task can be resumed"},
		"Running, asked":     {metav1.ConditionUnknown, v1alpha1.ReasonRunning, asks, "only a stopped task can be resumed"},
		"suspended, kept so": {metav1.ConditionUnknown, v1alpha1.ReasonSuspended, builders.Suspended, "operatingMode is Suspended: set it to Running"},
		"suspended, woken":   {metav1.ConditionUnknown, v1alpha1.ReasonSuspended, builders.Running, ""},
		"failed":             {metav1.ConditionFalse, v1alpha1.ReasonAgentFailed, builders.Running, ""},
		"rewound":            {metav1.ConditionUnknown, v1alpha1.ReasonRewound, builders.Running, ""},
		"Running, a phase":   {metav1.ConditionUnknown, v1alpha1.ReasonRunning, again, ""},
		"Retrying, a phase":  {metav1.ConditionUnknown, v1alpha1.ReasonRetrying, again, ""},
		"kept so, a phase":   {metav1.ConditionUnknown, v1alpha1.ReasonRunning, paused, "operatingMode is Suspended: set it to Running"},
		"stopped for drift":  {metav1.ConditionUnknown, v1alpha1.ReasonDriftDetected, builders.Running, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			task := created(t, builders.Task("resume-"+slug(name), builders.Suspended, leads))
			if c.reason != "" {
				setSucceeded(t, task, c.status, c.reason)
			}
			builders.Resume("again")(task)
			c.change(task)
			err := server.Client.Update(t.Context(), task)
			if c.sentence == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			expectRefused(t, err, c.sentence)
			if !strings.Contains(err.Error(), "spec.resume") {
				t.Errorf("%q does not name the field", err)
			}
		})
	}
}

func TestAPhaseDoesNotBeginAgainWhileAnotherResumeIsInProgress(t *testing.T) {
	task := created(t, builders.Task("resumes-twice", func(t *v1alpha1.Task) {
		t.Spec.Role, t.Spec.Contract = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "port"}
	}))
	setSucceeded(t, task, metav1.ConditionUnknown, v1alpha1.ReasonPreparing)
	for state, sentence := range map[v1alpha1.OperationState]string{
		v1alpha1.OperationInProgress: "unless a phase begins again and no other resume is in progress",
		v1alpha1.OperationCompleted:  "",
	} {
		task.Status.Resume = &v1alpha1.OperationStatus{ID: "first", State: state}
		must(t, server.Client.Status().Update(t.Context(), task))
		asked := task.DeepCopy()
		asked.Spec.Resume = &v1alpha1.Resume{ID: "again", Mode: v1alpha1.ResumeRestartPhase}
		err := server.Client.Update(t.Context(), asked, client.DryRunAll)
		if sentence == "" {
			must(t, err)
			continue
		}
		expectRefused(t, err, sentence)
	}
}

func TestAnOperationIsRequestedOncePerID(t *testing.T) {
	task := created(t, builders.Task("once"))
	setSucceeded(t, task, metav1.ConditionFalse, v1alpha1.ReasonAgentFailed)
	builders.Resume("a")(task)
	builders.Rewind("r", "once-1")(task)
	if err := server.Client.Update(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	task.Status.HandledOperations = []string{"Resume/a", "Rewind/r"}
	setSucceeded(t, task, metav1.ConditionUnknown, v1alpha1.ReasonRunning)

	t.Run("the same id with other contents is refused", func(t *testing.T) {
		changed := task.DeepCopy()
		changed.Spec.Resume.Prompt = "and this"
		expectRefused(t, server.Client.Update(t.Context(), changed, client.DryRunAll), "a resume is immutable")
		changed = task.DeepCopy()
		changed.Spec.Rewind.To.CheckpointRef.Name = "once-2"
		expectRefused(t, server.Client.Update(t.Context(), changed, client.DryRunAll), "a rewind is immutable")
	})
	t.Run("a running task can be rewound: it is stopped first", func(t *testing.T) {
		changed := task.DeepCopy()
		builders.Rewind("r2", "once-1")(changed)
		if err := server.Client.Update(t.Context(), changed, client.DryRunAll); err != nil {
			t.Error(err)
		}
	})
	t.Run("but not while a rewind is in progress", func(t *testing.T) {
		task.Status.Rewind = &v1alpha1.OperationStatus{ID: "r", State: v1alpha1.OperationInProgress}
		setSucceeded(t, task, metav1.ConditionUnknown, v1alpha1.ReasonRewinding)
		changed := task.DeepCopy()
		builders.Rewind("r2", "once-1")(changed)
		expectRefused(t, server.Client.Update(t.Context(), changed, client.DryRunAll), "a rewind is in progress")
		changed.Spec.Rewind = nil
		expectRefused(t, server.Client.Update(t.Context(), changed, client.DryRunAll), "a rewind is in progress")
	})
	t.Run("an id that was handled before is let through, since it does nothing", func(t *testing.T) {
		changed := task.DeepCopy()
		changed.Spec.Resume = nil
		if err := server.Client.Update(t.Context(), changed); err != nil {
			t.Fatal(err)
		}
		builders.Resume("a")(changed)
		if err := server.Client.Update(t.Context(), changed, client.DryRunAll); err != nil {
			t.Error(err)
		}
	})
}

func TestABadOperationIsRefused(t *testing.T) {
	task := created(t, builders.Task("operations"))
	setSucceeded(t, task, metav1.ConditionFalse, v1alpha1.ReasonAgentFailed)
	rewind := func(f func(*v1alpha1.Rewind)) change {
		return func(t *v1alpha1.Task) { builders.Rewind("a", "operations-1")(t); f(t.Spec.Rewind) }
	}
	paths := func(scope v1alpha1.RewindScope, paths ...string) change {
		return rewind(func(r *v1alpha1.Rewind) { r.Scope, r.Paths = scope, paths })
	}
	resume := func(f func(*v1alpha1.Resume)) change {
		return func(t *v1alpha1.Task) { builders.Resume("a")(t); f(t.Spec.Resume) }
	}
	for name, c := range map[string]struct {
		change   change
		sentence string
	}{
		"an undo with a scope": {rewind(func(r *v1alpha1.Rewind) { r.To, r.Scope = v1alpha1.RewindTarget{UndoOf: "b"}, v1alpha1.RewindCode }), "an undo rewinds what the rewind that it undoes has rewound: leave scope out"},
		"an undo with paths":   {rewind(func(r *v1alpha1.Rewind) { r.To, r.Paths = v1alpha1.RewindTarget{UndoOf: "b"}, []string{"a"} }), "an undo rewinds what the rewind that it undoes has rewound: leave paths out"},
		"a commit of Both":     {rewind(func(r *v1alpha1.Rewind) { r.To = v1alpha1.RewindTarget{Commit: strings.Repeat("a", 40)} }), "a commit holds only files: set rewind.scope to Code"},
		"a short commit":       {rewind(func(r *v1alpha1.Rewind) { r.To, r.Scope = v1alpha1.RewindTarget{Commit: "abc123"}, v1alpha1.RewindCode }), "give its 40 hexadecimal digits"},
		"a commit by name": {rewind(func(r *v1alpha1.Rewind) {
			r.To, r.Scope = v1alpha1.RewindTarget{Commit: "refs/heads/main"}, v1alpha1.RewindCode
		}), "give its 40 hexadecimal digits"},
		"an id of a child's":      {rewind(func(r *v1alpha1.Rewind) { r.ID = "parent-back" }), "ids that begin with parent- are those by which children follow a rewind of their parent"},
		"an undo of itself":       {rewind(func(r *v1alpha1.Rewind) { r.To = v1alpha1.RewindTarget{UndoOf: r.ID} }), "a rewind cannot undo itself"},
		"an undo of no id":        {rewind(func(r *v1alpha1.Rewind) { r.To = v1alpha1.RewindTarget{UndoOf: "-x"} }), "should match"},
		"unknown scope":           {rewind(func(r *v1alpha1.Rewind) { r.Scope = "Half" }), `supported values: "Code", "Conversation", "Both"`},
		"unknown preserve":        {rewind(func(r *v1alpha1.Rewind) { r.Preserve = "Maybe" }), `supported values: "Branch", "Stash", "Discard"`},
		"unknown onDrift":         {rewind(func(r *v1alpha1.Rewind) { r.OnDrift = "Shrug" }), `supported values: "Fail", "Preserve", "Override"`},
		"two places":              {rewind(func(r *v1alpha1.Rewind) { r.To.Message = ptr.To[int64](3) }), "set exactly one of checkpointRef, checkpointNumber, commit, message, time, messagesBack and undoOf"},
		"no place":                {rewind(func(r *v1alpha1.Rewind) { r.To = v1alpha1.RewindTarget{} }), "set exactly one of checkpointRef, checkpointNumber, commit, message, time, messagesBack and undoOf"},
		"message 0":               {rewind(func(r *v1alpha1.Rewind) { r.To = v1alpha1.RewindTarget{Message: ptr.To[int64](0)} }), "should be greater than or equal to 1"},
		"0 messages back":         {rewind(func(r *v1alpha1.Rewind) { r.To = v1alpha1.RewindTarget{MessagesBack: ptr.To[int32](0)} }), "should be greater than or equal to 1"},
		"paths of Both":           {paths("", "src"), "paths selects files: set rewind.scope to Code, or leave paths out"},
		"paths of Conversation":   {paths("Conversation", "src"), "paths selects files: set rewind.scope to Code, or leave paths out"},
		"path that leaves":        {paths("Code", "src", "src/../../x"), "contains no empty, . or .. part"},
		"path to above":           {paths("Code", ".."), "contains no empty, . or .. part"},
		"path to here":            {paths("Code", "./src"), "contains no empty, . or .. part"},
		"absolute path":           {paths("Code", "/etc/passwd"), "a path is relative to the worktree"},
		"path with an empty part": {paths("Code", "a//b"), "contains no empty, . or .. part"},
		"path into .git":          {paths("Code", "lib/.Git/config"), "a path cannot select the files of a git repository itself"},
		"path to .git":            {paths("Code", ".git"), "leave .git out"},
		"path with control":       {paths("Code", "a\tb"), "a path contains no control characters"},
		"empty path":              {paths("Code", ""), "spec.rewind.paths[0]"},
		"101 paths":               {paths("Code", slices.Repeat([]string{"a"}, 101)...), "must have at most 100 items"},
		"long path":               {paths("Code", strings.Repeat("a", 1025)), "may not be more than 1024"},
		"too little context":      {resume(func(r *v1alpha1.Resume) { r.Context = &v1alpha1.ContextLimits{Bytes: ptr.To[int32](1)} }), "should be greater than or equal to 1000"},
		"branch begins with -":    {rewind(func(r *v1alpha1.Rewind) { r.Branch = "-x" }), "branch must be a plain git branch name"},
		"branch with ..":          {rewind(func(r *v1alpha1.Rewind) { r.Branch = "a..b" }), "branch must be a plain git branch name"},
		"branch with control":     {rewind(func(r *v1alpha1.Rewind) { r.Branch = "a\x02" }), "branch must be a plain git branch name"},
		"branch without Branch":   {rewind(func(r *v1alpha1.Rewind) { r.Branch, r.Preserve = "b", v1alpha1.PreserveStash }), "set preserve to Branch or leave branch out"},
		"no id":                   {rewind(func(r *v1alpha1.Rewind) { r.ID = "" }), "spec.rewind.id"},
		"id with a slash":         {rewind(func(r *v1alpha1.Rewind) { r.ID = "a/b" }), "spec.rewind.id"},
		"checkpoint elsewhere":    {rewind(func(r *v1alpha1.Rewind) { r.To.CheckpointRef.Name = "other/c" }), "a reference contains no '/'"},
		"unknown resume mode":     {resume(func(r *v1alpha1.Resume) { r.Mode = "Hop" }), `supported values: "Continue", "Clean", "FromCheckpoint"`},
		"resume from nowhere":     {resume(func(r *v1alpha1.Resume) { r.Mode = v1alpha1.ResumeFromCheckpoint }), "set exactly one of checkpointRef and checkpointNumber for the mode FromCheckpoint"},
		"resume from two": {resume(func(r *v1alpha1.Resume) {
			r.Mode, r.CheckpointNumber, r.CheckpointRef = v1alpha1.ResumeFromCheckpoint, ptr.To[int64](1), &v1alpha1.NameReference{Name: "operations-1"}
		}), "set exactly one of checkpointRef and checkpointNumber for the mode FromCheckpoint"},
		"clean resume from one": {resume(func(r *v1alpha1.Resume) { r.Mode, r.CheckpointNumber = v1alpha1.ResumeClean, ptr.To[int64](1) }), "only the mode FromCheckpoint has a checkpoint"},
		"resume from one, no branch": {resume(func(r *v1alpha1.Resume) {
			r.ID, r.Mode, r.CheckpointNumber = "a..b", v1alpha1.ResumeFromCheckpoint, ptr.To[int64](1)
		}), "a branch name cannot contain '..'"},
		"placement elsewhere":  {resume(func(r *v1alpha1.Resume) { r.Placement = "Moon" }), `supported values: "Any", "OtherNode"`},
		"long context":         {resume(func(r *v1alpha1.Resume) { r.AdditionalContext = strings.Repeat("€", 6000) }), "resume.additionalContext is longer than 16384 bytes"},
		"context with control": {resume(func(r *v1alpha1.Resume) { r.AdditionalContext = "\x1b[2J" }), "resume.additionalContext must be text without control characters"},
		"long resume prompt":   {resume(func(r *v1alpha1.Resume) { r.Prompt = strings.Repeat("€", 20000) }), "resume.prompt is longer than 32768 bytes"},
		"resume with control":  {resume(func(r *v1alpha1.Resume) { r.Prompt = "\x1b[2J" }), "resume.prompt must be text without control characters"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := task.DeepCopy()
			c.change(changed)
			expectRefused(t, server.Client.Update(t.Context(), changed, client.DryRunAll), c.sentence)
		})
	}
}

func TestPathsThatARewindMaySelect(t *testing.T) {
	task := created(t, builders.Task("paths"))
	builders.Rewind("a", "paths-1")(task)
	task.Spec.Rewind.Scope = v1alpha1.RewindCode
	task.Spec.Rewind.Paths = []string{"src", "src/", "**/*_test.go", "app/[id]/page.tsx", ".gitignore", ".github/workflows", "a..b", "...", "ünï", "a b"}
	if err := server.Client.Update(t.Context(), task, client.DryRunAll); err != nil {
		t.Error(err)
	}
}

func TestATimeThatClientsCannotParseIsRefused(t *testing.T) {
	task := created(t, builders.Task("times"))
	for moment, ok := range map[string]bool{
		"2026-05-01T14:30:00Z": true, "2026-05-01T14:30:00.123456+02:00": true,
		"2026-05-01t14:30:00z": false, "2026-05-01": false, "2026-02-31T14:30:00Z": false, "2026-05-01T14:30:00": false,
		"2026-05-01T24:30:00Z": false, "2026-05-01T14:30:00+25:00": false, "yesterday": false,
	} {
		patch := fmt.Sprintf(`{"spec":{"rewind":{"id":"a","to":{"time":%q}}}}`, moment)
		read := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Namespace: task.Namespace, Name: task.Name}}
		err := server.Client.Patch(t.Context(), read, client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
		switch {
		case ok && (err != nil || read.Spec.Rewind.To.Time.IsZero()):
			t.Errorf("%s is refused or not parsed: %v", moment, err)
		case !ok && !apierrors.IsInvalid(err):
			t.Errorf("%s was not refused, but: %v", moment, err)
		}
	}
}

func TestARewindThatMustNotStopTheAgentIsRefusedWhileItRuns(t *testing.T) {
	for name, c := range map[string]struct {
		reason   string
		when     v1alpha1.WhenRunning
		sentence string
	}{
		"running":             {v1alpha1.ReasonRunning, v1alpha1.WhenRunningRefuse, "the task is running, and this rewind refuses running tasks"},
		"running, may stop":   {v1alpha1.ReasonRunning, v1alpha1.WhenRunningStop, ""},
		"running, by default": {v1alpha1.ReasonRunning, "", ""},
		"suspended":           {v1alpha1.ReasonSuspended, v1alpha1.WhenRunningRefuse, ""},
	} {
		t.Run(name, func(t *testing.T) {
			task := created(t, builders.Task("rewind-"+slug(name)))
			setSucceeded(t, task, metav1.ConditionUnknown, c.reason)
			builders.Rewind("back", "")(task)
			task.Spec.Rewind.To = v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](3)}
			task.Spec.Rewind.WhenRunning = c.when
			err := server.Client.Update(t.Context(), task)
			if c.sentence == "" {
				must(t, err)
				return
			}
			expectRefused(t, err, c.sentence)
		})
	}
}

func TestAnUndoOfNothingIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		status   func(*v1alpha1.TaskStatus)
		sentence string
	}{
		"never rewound": {func(*v1alpha1.TaskStatus) {}, "there is nothing to undo: this task was never rewound"},
		"only resumed":  {func(s *v1alpha1.TaskStatus) { s.HandledOperations = []string{"Resume/back"} }, "this task was never rewound"},
		"the rewind was refused": {func(s *v1alpha1.TaskStatus) {
			s.HandledOperations = []string{"Rewind/back"}
			s.Rewind = &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationRefused}
		}, "that rewind was refused or failed, and changed nothing"},
		"it was rewound": {func(s *v1alpha1.TaskStatus) {
			s.HandledOperations = []string{"Rewind/back"}
			s.Rewind = &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationCompleted, Scope: v1alpha1.RewindCode}
		}, ""},
		"it was rewound before another one failed": {func(s *v1alpha1.TaskStatus) {
			s.HandledOperations = []string{"Rewind/back", "Rewind/again"}
			s.Rewind = &v1alpha1.OperationStatus{ID: "again", State: v1alpha1.OperationFailed}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			task := created(t, builders.Task("undo-"+slug(name)))
			c.status(&task.Status)
			must(t, server.Client.Status().Update(t.Context(), task))
			builders.Rewind("undo", "")(task)
			task.Spec.Rewind.To, task.Spec.Rewind.Scope = v1alpha1.RewindTarget{UndoOf: "back"}, ""
			err := server.Client.Update(t.Context(), task)
			if c.sentence == "" {
				must(t, err)
				return
			}
			expectRefused(t, err, c.sentence)
		})
	}
}

func TestAnUndoTakesOnlyChildrenBackThatWereTakenAlong(t *testing.T) {
	for name, c := range map[string]struct {
		led     *v1alpha1.SetRewind
		refused bool
	}{
		"none were":             {nil, true},
		"by another rewind":     {&v1alpha1.SetRewind{LedRewind: v1alpha1.LedRewind{ID: "later", State: v1alpha1.OperationCompleted}}, true},
		"by that one":           {&v1alpha1.SetRewind{LedRewind: v1alpha1.LedRewind{ID: "back", State: v1alpha1.OperationCompleted}}, false},
		"whose undo had failed": {&v1alpha1.SetRewind{LedRewind: v1alpha1.LedRewind{ID: "forth", UndoOf: "back", State: v1alpha1.OperationFailed}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			task := created(t, builders.Task("undo-set-"+slug(name), spec(func(s *v1alpha1.TaskSpec) {
				s.Role, s.Contract = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "port"}
			})))
			task.Status.HandledOperations, task.Status.SetRewind = []string{"Rewind/back"}, c.led
			must(t, server.Client.Status().Update(t.Context(), task))
			builders.Rewind("undo", "")(task)
			task.Spec.Rewind.To, task.Spec.Rewind.Scope, task.Spec.Rewind.Children = v1alpha1.RewindTarget{UndoOf: "back"}, "", v1alpha1.ChildrenRewind
			err := server.Client.Update(t.Context(), task)
			if !c.refused {
				must(t, err)
				return
			}
			expectRefused(t, err, "that rewind is not the last one of this task that took children along")
		})
	}
}

func TestAResumeThatNoNodeCanCarryOutIsReplacedByAnother(t *testing.T) {
	task := created(t, builders.Task("held-off"))
	task.Status.Resume = &v1alpha1.OperationStatus{ID: "move", State: v1alpha1.OperationInProgress, AvoidedNode: "node-7"}
	setSucceeded(t, task, metav1.ConditionUnknown, v1alpha1.ReasonUnschedulable)
	builders.Resume("return")(task)
	must(t, server.Client.Update(t.Context(), task))
}
