package v1alpha1_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/apiserver"
	"github.com/clew-dev/clew/internal/testing/builders"
)

var server *apiserver.Server

func TestMain(m *testing.M) { apiserver.Main(m, &server) }

type change = builders.TaskOption

func spec(f func(*v1alpha1.TaskSpec)) change {
	return func(t *v1alpha1.Task) { f(&t.Spec) }
}

func ref(r string) change { return spec(func(s *v1alpha1.TaskSpec) { s.Repository.Ref = r }) }

func url(u string) change { return spec(func(s *v1alpha1.TaskSpec) { s.Repository.URL = u }) }

func typed(s *v1alpha1.TaskSpec) { s.Agent.Type = v1alpha1.AgentClaudeCode }

func model(name string) change {
	return spec(func(s *v1alpha1.TaskSpec) { typed(s); s.Agent.Model = name })
}

func risky(tool, input string) change {
	return spec(func(s *v1alpha1.TaskSpec) {
		s.CheckpointPolicy.BeforeRiskyTools = []v1alpha1.RiskyToolPattern{{Tool: tool, Input: input}}
	})
}

func snapshotEvery(n int32) change {
	return spec(func(s *v1alpha1.TaskSpec) { s.Conversation.SnapshotEveryMessages = &n })
}

func limits(l v1alpha1.ContextLimits) change {
	return spec(func(s *v1alpha1.TaskSpec) { s.Conversation.Context = l })
}

// badTasks are refused whether they are applied as new or over a good one,
// unless the field is immutable: then the update is refused for that.
func badTasks() map[string]struct {
	change   change
	sentence string
} {
	return map[string]struct {
		change   change
		sentence string
	}{
		"ref begins with -":      {ref("--upload-pack=/bin/sh"), "ref must not begin with '-'"},
		"ref is a range":         {ref("main..next"), "ref must not hold '..'"},
		"ref with control":       {ref("main\x01"), "ref must not hold spaces, control characters"},
		"ref with a new line":    {ref("main\nnext"), "ref must not hold spaces, control characters"},
		"ref with a space":       {ref("main next"), "ref must not hold spaces, control characters"},
		"ref with a colon":       {ref("a:b"), "ref must not hold spaces, control characters"},
		"ref with a backslash":   {ref(`a\b`), "ref must not hold spaces, control characters"},
		"ref with a caret":       {ref("main^"), "ref must not hold spaces, control characters"},
		"ref ends with .lock":    {ref("main.lock"), "ref is not a name git accepts"},
		"ref with @{":            {ref("main@{1}"), "ref is not a name git accepts"},
		"ref is too long":        {ref(strings.Repeat("r", 256)), "may not be more than 255"},
		"ext url":                {url("ext::sh -c id"), "url must not hold spaces"},
		"ext url without spaces": {url("ext::sh"), "url must be an http:// or https:// address"},
		"file url":               {url("file:///etc/passwd"), "url must be an http:// or https:// address"},
		"a path as url":          {url("/srv/git/project.git"), "url must be an http:// or https:// address"},
		"scp-like url":           {url("git@host:project.git"), "url must be an http:// or https:// address"},
		"url begins with -":      {url("-oProxyCommand=id"), "url must not begin with '-'"},
		"credentials in url":     {url("https://me:secret@git.example.com/p.git"), "take the credentials out of url"},
		"a user in url":          {url("https://me@git.example.com/p.git"), "take the credentials out of url"},
		"url with control":       {url("https://git.example.com/p\x7f.git"), "url must not hold spaces or control characters"},
		"url is too long":        {url("https://git.example.com/" + strings.Repeat("u", 2048)), "may not be more than 2048"},
		"prompt and promptFrom": {spec(func(s *v1alpha1.TaskSpec) {
			s.PromptFrom = &v1alpha1.PromptSource{ConfigMapKeyRef: &v1alpha1.KeyReference{Name: "a", Key: "b"}}
		}), "set either prompt or promptFrom"},
		"no prompt": {spec(func(s *v1alpha1.TaskSpec) { s.Prompt = nil }), "set either prompt or promptFrom"},
		"promptFrom nothing": {spec(func(s *v1alpha1.TaskSpec) {
			s.Prompt, s.PromptFrom = nil, &v1alpha1.PromptSource{}
		}), "set either configMapKeyRef or secretKeyRef"},
		"promptFrom a key with a slash": {spec(func(s *v1alpha1.TaskSpec) {
			s.Prompt, s.PromptFrom = nil, &v1alpha1.PromptSource{SecretKeyRef: &v1alpha1.KeyReference{Name: "a", Key: "../b"}}
		}), "key must be a key of the object's data"},
		"prompt with control":       {spec(func(s *v1alpha1.TaskSpec) { s.Prompt = ptr.To("bell\a") }), "prompt must be text without control characters"},
		"prompt of many bytes":      {spec(func(s *v1alpha1.TaskSpec) { s.Prompt = ptr.To(strings.Repeat("€", 30000)) }), "prompt is longer than 65536 bytes"},
		"unknown agent":             {spec(func(s *v1alpha1.TaskSpec) { s.Agent.Type = "Abacus" }), `supported values: "Exec", "ClaudeCode", "Codex", "GeminiCLI", "OpenCode", "QwenCode"`},
		"a model of any command":    {spec(func(s *v1alpha1.TaskSpec) { s.Agent.Model = "gpt-5" }), "an agent of type Exec is any command, and takes no model"},
		"a model that is an option": {model("--dangerously-skip-permissions"), "model must be the name of a model"},
		"a model with a space":      {model("claude sonnet"), "model must be the name of a model"},
		"a model with a new line":   {model("claude\n"), "model must be the name of a model"},
		"a model that is too long":  {model(strings.Repeat("m", 201)), "may not be more than 200"},
		"a tool that is no pattern": {risky("(", ""), "tool must be a regular expression in RE2 syntax"},
		"an input that is none":     {risky("Bash", "a{2000}"), "input must be a regular expression in RE2 syntax"},
		"a pattern of Perl's":       {risky("Bash", "(?!x)"), "input must be a regular expression in RE2 syntax"},
		"a pattern for every call":  {risky("", ""), "set tool, input or both in beforeRiskyTools"},
		"a long pattern":            {risky(strings.Repeat("x", 257), ""), "may not be more than 256"},
		"too many patterns": {spec(func(s *v1alpha1.TaskSpec) {
			s.CheckpointPolicy.BeforeRiskyTools = slices.Repeat([]v1alpha1.RiskyToolPattern{{Tool: "x"}}, 33)
		}), "must have at most 32 items"},
		"a snapshot each message": {snapshotEvery(1), "snapshotEveryMessages must be 0, for no automatic snapshots, or at least 5"},
		"a negative number":       {snapshotEvery(-1), "should be greater than or equal to 0"},
		"too little context":      {limits(v1alpha1.ContextLimits{Bytes: ptr.To[int32](10)}), "should be greater than or equal to 1000"},
		"too much context":        {limits(v1alpha1.ContextLimits{Bytes: ptr.To[int32](2_000_000)}), "should be less than or equal to 1000000"},
		"half a summary":          {limits(v1alpha1.ContextLimits{Summary: "Half"}), `supported values: "Include", "Exclude"`},
		"unknown mode":            {spec(func(s *v1alpha1.TaskSpec) { s.OperatingMode = "Jogging" }), `supported values: "Running", "Suspended"`},
		"unknown retention":       {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.Retention = "Perhaps" }), `supported values: "Delete", "Retain"`},
		"negative backoff":        {builders.BackoffLimit(-1), "should be greater than or equal to 0"},
		"negative interval":       {spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.EverySeconds = ptr.To[int32](-1) }), "should be greater than or equal to 0"},
		"negative tool calls":     {spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.EveryToolCalls = ptr.To[int32](-1) }), "should be greater than or equal to 0"},
		"no file at all":          {spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.MaxFileBytes = ptr.To[int64](0) }), "should be greater than or equal to 1"},
		"negative size":           {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.Size = resource.MustParse("-1Gi") }), "size must be more than zero"},
		"other access mode":       {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.AccessMode = "ReadWriteMany" }), "Unsupported value"},
		"empty storage class":     {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.StorageClassName = ptr.To("") }), "leave storageClassName out"},
		"state path outside":      {spec(func(s *v1alpha1.TaskSpec) { s.Agent.StatePaths = []string{"../x"} }), "statePaths are relative"},
		"absolute state path":     {spec(func(s *v1alpha1.TaskSpec) { s.Agent.StatePaths = []string{"/etc"} }), "statePaths are relative"},
		"secret elsewhere": {spec(func(s *v1alpha1.TaskSpec) {
			s.Repository.CredentialsSecretRef = &v1alpha1.NameReference{Name: "other/secret"}
		}), "a reference holds no '/'"},
		"no lost records":       {spec(func(s *v1alpha1.TaskSpec) { s.Acknowledge = &v1alpha1.Acknowledgement{} }), "should be greater than or equal to 1"},
		"starts from itself":    {func(t *v1alpha1.Task) { builders.StartFrom(t.Name, "")(t) }, "startFrom cannot name the task itself"},
		"starts from elsewhere": {builders.StartFrom("other/task", ""), "a reference holds no '/'"},
	}
}

func TestABadTaskIsRefusedWhenItIsApplied(t *testing.T) {
	existing := created(t, builders.Task("good-one"))
	for name, c := range badTasks() {
		t.Run(name, func(t *testing.T) {
			expectRefused(t, create(builders.Task("bad-one", c.change)), c.sentence)
			updated := existing.DeepCopy()
			c.change(updated)
			if err := server.Client.Update(t.Context(), updated, client.DryRunAll); err == nil {
				t.Error("the same as an update was accepted")
			} else if !strings.Contains(err.Error(), c.sentence) && !strings.Contains(err.Error(), "is immutable") {
				t.Errorf("the same as an update is refused with %q", err)
			}
		})
	}
}

func TestABadTemplateIsRefusedWhenItIsApplied(t *testing.T) {
	existing := created(t, builders.Task("good-template"))
	for _, c := range builders.RefusedTemplates() {
		t.Run(c.Name, func(t *testing.T) {
			bad := builders.Task("bad-template", c.Break)
			expectRefused(t, create(bad), c.Sentence)
			updated := existing.DeepCopy()
			c.Break(updated)
			expectRefused(t, server.Client.Update(t.Context(), updated, client.DryRunAll), c.Sentence)
		})
	}
}

func TestNamesThatWouldMakeAChildsNameTooLongAreRefused(t *testing.T) {
	expectRefused(t, create(builders.Task(strings.Repeat("n", 47))), "use at most 46 characters")
	expectRefused(t, create(builders.Task("has.dots")), "lower-case letters, digits and '-' only")
	if err := create(builders.Task(strings.Repeat("n", 46))); err != nil {
		t.Errorf("46 characters are refused: %v", err)
	}
}

func TestWhatATaskIsAboutCannotBeChanged(t *testing.T) {
	existing := created(t, builders.Task("fixed", builders.StartFrom("other", "")))
	for name, c := range map[string]struct {
		change   change
		sentence string
	}{
		"repository":         {url("https://git.example.com/other.git"), "repository is immutable"},
		"repository removed": {spec(func(s *v1alpha1.TaskSpec) { s.Repository = nil }), "repository is immutable"},
		"prompt":             {spec(func(s *v1alpha1.TaskSpec) { s.Prompt = ptr.To("Other.") }), "prompt is immutable"},
		"startFrom":          {builders.StartFrom("another", ""), "startFrom is immutable"},
		"startFrom removed":  {spec(func(s *v1alpha1.TaskSpec) { s.StartFrom = nil }), "startFrom is immutable"},
		"size":               {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.Size = resource.MustParse("6Gi") }), "workspace.size, workspace.storageClassName and workspace.accessMode are immutable"},
		"access mode":        {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.AccessMode = v1alpha1.WorkspaceReadWriteOncePod }), "workspace.size, workspace.storageClassName and workspace.accessMode are immutable"},
		"storage class":      {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.StorageClassName = ptr.To("fast") }), "workspace.size, workspace.storageClassName and workspace.accessMode are immutable"},
	} {
		t.Run(name, func(t *testing.T) {
			updated := existing.DeepCopy()
			c.change(updated)
			expectRefused(t, server.Client.Update(t.Context(), updated, client.DryRunAll), c.sentence)
		})
	}
	same := existing.DeepCopy()
	same.Spec.Workspace.Size = resource.MustParse("5120Mi")
	if err := server.Client.Update(t.Context(), same, client.DryRunAll); err != nil {
		t.Errorf("the same size in other words is refused: %v", err)
	}
}

func TestANewTaskCannotAskForAResumeOrARewind(t *testing.T) {
	expectRefused(t, create(builders.Task("new", builders.Resume("a"))), "a new Task has nothing to resume")
	expectRefused(t, create(builders.Task("new", builders.Rewind("a", "new-1"))), "a new Task has no checkpoint to go back to")
}

// No loss is acknowledged before it happens.
func TestNoMoreIsAcknowledgedThanIsLost(t *testing.T) {
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
	loses(0) // the history store goes back, and counts anew
	builders.Suspended(task)
	must(t, server.Client.Update(t.Context(), task))
	task.Spec.Acknowledge = nil
	must(t, server.Client.Update(t.Context(), task))
}

// The manager would see only that the number is the one that has ended.
func TestAnEndedAcknowledgementIsSetAnewOnceTheManagerHasSeenItGone(t *testing.T) {
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
	cases := map[string]struct {
		status   metav1.ConditionStatus
		reason   string
		change   change
		sentence string
	}{
		"no status yet":     {"", "", builders.Running, "only a stopped task can be resumed"},
		"Preparing":         {metav1.ConditionUnknown, v1alpha1.ReasonPreparing, builders.Running, "only a stopped task can be resumed"},
		"Running":           {metav1.ConditionUnknown, v1alpha1.ReasonRunning, builders.Running, "only a stopped task can be resumed"},
		"Rewinding":         {metav1.ConditionUnknown, v1alpha1.ReasonRewinding, builders.Running, "only a stopped task can be resumed"},
		"Suspending":        {metav1.ConditionUnknown, v1alpha1.ReasonSuspending, builders.Running, "only a stopped task can be resumed"},
		"Completed":         {metav1.ConditionTrue, v1alpha1.ReasonCompleted, builders.Running, "a completed task has nothing left to resume"},
		"asleep, kept so":   {metav1.ConditionUnknown, v1alpha1.ReasonSuspended, builders.Suspended, "operatingMode is Suspended: set it to Running"},
		"asleep, woken":     {metav1.ConditionUnknown, v1alpha1.ReasonSuspended, builders.Running, ""},
		"failed":            {metav1.ConditionFalse, v1alpha1.ReasonAgentFailed, builders.Running, ""},
		"rewound":           {metav1.ConditionUnknown, v1alpha1.ReasonRewound, builders.Running, ""},
		"stopped for drift": {metav1.ConditionUnknown, v1alpha1.ReasonDriftDetected, builders.Running, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			task := created(t, builders.Task("resume-"+slug(name), builders.Suspended))
			if c.reason != "" {
				setSucceeded(t, task, c.status, c.reason)
			}
			c.change(task)
			builders.Resume("again")(task)
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

func TestAnOperationIsAskedForOncePerID(t *testing.T) {
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
	t.Run("but not while a rewind is under way", func(t *testing.T) {
		task.Status.Rewind = &v1alpha1.OperationStatus{ID: "r", State: v1alpha1.OperationInProgress}
		setSucceeded(t, task, metav1.ConditionUnknown, v1alpha1.ReasonRewinding)
		changed := task.DeepCopy()
		builders.Rewind("r2", "once-1")(changed)
		expectRefused(t, server.Client.Update(t.Context(), changed, client.DryRunAll), "a rewind is under way")
		changed.Spec.Rewind = nil
		expectRefused(t, server.Client.Update(t.Context(), changed, client.DryRunAll), "a rewind is under way")
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
	resume := func(f func(*v1alpha1.Resume)) change {
		return func(t *v1alpha1.Task) { builders.Resume("a")(t); f(t.Spec.Resume) }
	}
	for name, c := range map[string]struct {
		change   change
		sentence string
	}{
		"unknown scope":         {rewind(func(r *v1alpha1.Rewind) { r.Scope = "Half" }), `supported values: "Code", "Conversation", "Both"`},
		"unknown preserve":      {rewind(func(r *v1alpha1.Rewind) { r.Preserve = "Maybe" }), `supported values: "Branch", "Stash", "Discard"`},
		"unknown onDrift":       {rewind(func(r *v1alpha1.Rewind) { r.OnDrift = "Shrug" }), `supported values: "Fail", "Preserve", "Override"`},
		"two places":            {rewind(func(r *v1alpha1.Rewind) { r.To.Message = ptr.To[int64](3) }), "set exactly one of checkpointRef, message, time and messagesBack"},
		"no place":              {rewind(func(r *v1alpha1.Rewind) { r.To = v1alpha1.RewindTarget{} }), "set exactly one of checkpointRef, message, time and messagesBack"},
		"message 0":             {rewind(func(r *v1alpha1.Rewind) { r.To = v1alpha1.RewindTarget{Message: ptr.To[int64](0)} }), "should be greater than or equal to 1"},
		"0 messages back":       {rewind(func(r *v1alpha1.Rewind) { r.To = v1alpha1.RewindTarget{MessagesBack: ptr.To[int32](0)} }), "should be greater than or equal to 1"},
		"too little context":    {resume(func(r *v1alpha1.Resume) { r.Context = &v1alpha1.ContextLimits{Bytes: ptr.To[int32](1)} }), "should be greater than or equal to 1000"},
		"branch begins with -":  {rewind(func(r *v1alpha1.Rewind) { r.Branch = "-x" }), "branch must be a plain git branch name"},
		"branch with ..":        {rewind(func(r *v1alpha1.Rewind) { r.Branch = "a..b" }), "branch must be a plain git branch name"},
		"branch with control":   {rewind(func(r *v1alpha1.Rewind) { r.Branch = "a\x02" }), "branch must be a plain git branch name"},
		"branch without Branch": {rewind(func(r *v1alpha1.Rewind) { r.Branch, r.Preserve = "b", v1alpha1.PreserveStash }), "set preserve to Branch or leave branch out"},
		"no id":                 {rewind(func(r *v1alpha1.Rewind) { r.ID = "" }), "spec.rewind.id"},
		"id with a slash":       {rewind(func(r *v1alpha1.Rewind) { r.ID = "a/b" }), "spec.rewind.id"},
		"checkpoint elsewhere":  {rewind(func(r *v1alpha1.Rewind) { r.To.CheckpointRef.Name = "other/c" }), "a reference holds no '/'"},
		"unknown resume mode":   {resume(func(r *v1alpha1.Resume) { r.Mode = "Hop" }), `supported values: "Continue"`},
		"long resume prompt":    {resume(func(r *v1alpha1.Resume) { r.Prompt = strings.Repeat("€", 20000) }), "resume.prompt is longer than 32768 bytes"},
		"resume with control":   {resume(func(r *v1alpha1.Resume) { r.Prompt = "\x1b[2J" }), "resume.prompt must be text without control characters"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := task.DeepCopy()
			c.change(changed)
			expectRefused(t, server.Client.Update(t.Context(), changed, client.DryRunAll), c.sentence)
		})
	}
}

func TestTheOtherKindsAreCheckedToo(t *testing.T) {
	at := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	fork := func(name, source, variant string, more ...v1alpha1.ForkVariant) *v1alpha1.Fork {
		return &v1alpha1.Fork{ObjectMeta: at(name), Spec: v1alpha1.ForkSpec{
			SourceRef: v1alpha1.NameReference{Name: source}, Variants: append([]v1alpha1.ForkVariant{{Name: variant}}, more...),
		}}
	}
	for name, c := range map[string]struct {
		object   client.Object
		sentence string
	}{
		"a fork of itself":     {fork("f", "same", "same"), "a fork cannot have its source's name"},
		"a fork of elsewhere":  {fork("f", "other/same", "new"), "a reference holds no '/'"},
		"a long variant":       {fork("f", "source", strings.Repeat("v", 47)), "the name of a variant is too long"},
		"an odd variant":       {fork("f", "source", "Has.Dots"), "the name of a variant must be lower-case letters"},
		"several variants":     {fork("f", "source", "a", v1alpha1.ForkVariant{Name: "b"}), "must have at most 1 item"},
		"a long fork":          {fork(strings.Repeat("f", 64), "source", "a"), "use at most 63 characters"},
		"a checkpoint of none": {&v1alpha1.Checkpoint{ObjectMeta: at("c")}, "spec.taskRef.name"},
		"a checkpoint's words": {&v1alpha1.Checkpoint{ObjectMeta: at("c"), Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "t"}, Message: "\x00"}}, "message must be plain text"},
		"a snapshot of two":    {snapshotOf(&v1alpha1.NameReference{Name: "c"}, ptr.To[int64](3)), "set at most one of checkpointRef and position"},
		"a snapshot of none":   {snapshotOf(nil, ptr.To[int64](0)), "should be greater than or equal to 1"},
		"a snapshot elsewhere": {&v1alpha1.ConversationSnapshot{ObjectMeta: at("s"), Spec: v1alpha1.ConversationSnapshotSpec{TaskRef: v1alpha1.NameReference{Name: "o/t"}}}, "a reference holds no '/'"},
	} {
		t.Run(name, func(t *testing.T) {
			expectRefused(t, server.Client.Create(t.Context(), c.object, client.DryRunAll), c.sentence)
		})
	}
}

func snapshotOf(checkpoint *v1alpha1.NameReference, position *int64) *v1alpha1.ConversationSnapshot {
	return &v1alpha1.ConversationSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Spec: v1alpha1.ConversationSnapshotSpec{
		TaskRef: v1alpha1.NameReference{Name: "t"}, CheckpointRef: checkpoint, Position: position,
	}}
}

func TestATimeThatClientsCannotReadIsRefused(t *testing.T) {
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
			t.Errorf("%s: %v", moment, err)
		case !ok && !apierrors.IsInvalid(err):
			t.Errorf("%s was not refused, but: %v", moment, err)
		}
	}
}

func TestDefaults(t *testing.T) {
	task := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "clew.dev/v1alpha1", "kind": "Task", "metadata": map[string]any{"namespace": "default", "name": "defaults"},
		"spec": map[string]any{"prompt": "p", "template": map[string]any{"spec": map[string]any{"containers": []any{
			map[string]any{"name": "agent", "image": "i", "command": []any{"c"}},
		}}}},
	}}
	if err := server.Client.Create(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	read := &v1alpha1.Task{}
	if err := server.Client.Get(t.Context(), client.ObjectKeyFromObject(task), read); err != nil {
		t.Fatal(err)
	}
	c := read.Spec.Conversation
	if *c.SnapshotEveryMessages != 50 || *c.Context.Messages != 200 || *c.Context.ToolCalls != 100 || *c.Context.ToolResultBytes != 2000 ||
		c.Context.Summary != v1alpha1.ConversationInclude || *c.Context.Bytes != 200000 {
		t.Errorf("conversation %+v", c)
	}
	patterns := read.Spec.CheckpointPolicy.BeforeRiskyTools
	if len(patterns) == 0 {
		t.Fatal("no tool call is risky")
	}
	for command, risky := range map[string]bool{
		`{"command":"rm -rf src"}`: true, `{"command":"cd a && rm -r b"}`: true, `{"command":"cd a\nrm --force b"}`: true,
		`{"command":"git reset --hard HEAD~1"}`: true, `{"command":"git -C a clean -fdx"}`: true, `{"command":"git push --force"}`: true,
		`{"command":"find . -name '*.o' -delete"}`: true, `{"command":"psql -c 'DROP TABLE users'"}`: true, `{"command":["bash","-lc","rm -rf /tmp/x"]}`: true,
		`{"command":"ls -la"}`: false, `{"command":"git status"}`: false, `{"command":"git push"}`: false, `{"command":"go test ./..."}`: false,
		`{"command":"npm run format"}`: false, `{"command":"git log --oneline"}`: false, `{"command":"grep -rf patterns ."}`: false,
	} {
		found := slices.ContainsFunc(patterns, func(p v1alpha1.RiskyToolPattern) bool {
			return regexp.MustCompile(p.Tool).MatchString("Bash") && regexp.MustCompile(p.Input).MatchString(command)
		})
		if found != risky {
			t.Errorf("%s is risky: %v", command, found)
		}
	}
	for tool, shell := range map[string]bool{
		"Bash": true, "bash": true, "shell": true, "exec_command": true, "command_execution": true, "run_shell_command": true,
		"Read": false, "Edit": false, "web_search": false,
	} {
		if regexp.MustCompile(patterns[0].Tool).MatchString(tool) != shell {
			t.Errorf("%s is a shell: %v", tool, !shell)
		}
	}
}

func TestNoRiskyToolsStaysNone(t *testing.T) {
	task := created(t, builders.Task("no-risk", spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.BeforeRiskyTools = []v1alpha1.RiskyToolPattern{} })))
	task.Labels = map[string]string{"touched": "by-a-client"}
	if err := server.Client.Update(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if got := task.Spec.CheckpointPolicy.BeforeRiskyTools; got == nil || len(got) != 0 {
		t.Errorf("a client that writes the task back turns them on: %+v", got)
	}
}

func TestSpecsOfTheOtherKindsAreImmutable(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "default", Name: "immutable"}
	checkpoint := &v1alpha1.Checkpoint{ObjectMeta: meta, Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "t"}}}
	snapshot := &v1alpha1.ConversationSnapshot{ObjectMeta: meta, Spec: v1alpha1.ConversationSnapshotSpec{TaskRef: v1alpha1.NameReference{Name: "t"}}}
	fork := &v1alpha1.Fork{ObjectMeta: meta, Spec: v1alpha1.ForkSpec{
		SourceRef: v1alpha1.NameReference{Name: "t"}, Variants: []v1alpha1.ForkVariant{{Name: "v"}},
	}}
	for _, object := range []client.Object{checkpoint, snapshot, fork} {
		if err := server.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	checkpoint.Spec.Message = "other"
	expectRefused(t, server.Client.Update(t.Context(), checkpoint), "a Checkpoint's spec is immutable")
	snapshot.Spec.CheckpointRef = &v1alpha1.NameReference{Name: "c"}
	expectRefused(t, server.Client.Update(t.Context(), snapshot), "a ConversationSnapshot's spec is immutable")
	fork.Spec.Conversation = v1alpha1.ConversationExclude
	expectRefused(t, server.Client.Update(t.Context(), fork), "a Fork's spec is immutable")
}

func TestGoodTasksAreAccepted(t *testing.T) {
	for name, c := range map[string]change{
		"no repository":       spec(func(s *v1alpha1.TaskSpec) { s.Repository = nil }),
		"a commit":            ref("0123456789abcdef0123456789abcdef01234567"),
		"a branch with dirs":  ref("feature/one.two"),
		"plain http":          url("http://git.svc:8080/p.git"),
		"a prompt with lines": spec(func(s *v1alpha1.TaskSpec) { s.Prompt = ptr.To("one\n\ttwo: $(HOME) €") }),
		"a known agent":       func(t *v1alpha1.Task) { typed(&t.Spec); t.Spec.Template.Spec.Containers[0].Command = nil },
		"a model":             model("anthropic/claude-sonnet-4-5[1m]"),
		"risky tools":         risky(`^(Bash|shell)$`, `\bterraform\s+destroy`),
		"a sidecar, a volume": spec(func(s *v1alpha1.TaskSpec) {
			s.Template.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			s.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "cache", MountPath: "/home/agent/.cache"}}
			s.Template.Spec.Containers = append(s.Template.Spec.Containers, corev1.Container{Name: "database", Image: "db"})
		}),
	} {
		t.Run(name, func(t *testing.T) {
			if err := create(builders.Task("fine", c)); err != nil {
				t.Error(err)
			}
		})
	}
}

func create(task *v1alpha1.Task) error {
	return server.Client.Create(context.Background(), task, client.DryRunAll)
}

func created(t *testing.T, task *v1alpha1.Task) *v1alpha1.Task {
	t.Helper()
	if err := server.Client.Create(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	return task
}

func setSucceeded(t *testing.T, task *v1alpha1.Task, status metav1.ConditionStatus, reason string) {
	t.Helper()
	task.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.TaskSucceeded, Status: status, Reason: reason, LastTransitionTime: metav1.Now(),
	}}
	if err := server.Client.Status().Update(t.Context(), task); err != nil {
		t.Fatal(err)
	}
}

func expectRefused(t *testing.T, err error, sentence string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("accepted; wanted %q", sentence)
	case !strings.Contains(err.Error(), sentence):
		t.Errorf("refused with\n  %q\nwanted\n  %q", err, sentence)
	}
}

func slug(s string) string {
	return strings.ToLower(strings.NewReplacer(" ", "-", ",", "").Replace(s))
}
