package v1alpha1_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// badTasks returns changes that are refused in a new Task and in an update of a good one. If the
// field is immutable, the update is refused for that.
func badTasks() map[string]struct {
	change   change
	sentence string
} {
	return map[string]struct {
		change   change
		sentence string
	}{
		"ref begins with -":      {ref("--upload-pack=/bin/sh"), "ref must not begin with '-'"},
		"ref is a range":         {ref("main..next"), "ref must not contain '..'"},
		"ref with control":       {ref("main\x01"), "ref must not contain spaces, control characters"},
		"ref with a new line":    {ref("main\nnext"), "ref must not contain spaces, control characters"},
		"ref with a space":       {ref("main next"), "ref must not contain spaces, control characters"},
		"ref with a colon":       {ref("a:b"), "ref must not contain spaces, control characters"},
		"ref with a backslash":   {ref(`a\b`), "ref must not contain spaces, control characters"},
		"ref with a caret":       {ref("main^"), "ref must not contain spaces, control characters"},
		"ref ends with .lock":    {ref("main.lock"), "ref is not a name that git accepts"},
		"ref with @{":            {ref("main@{1}"), "ref is not a name that git accepts"},
		"ref is too long":        {ref(strings.Repeat("r", 256)), "may not be more than 255"},
		"ext url":                {url("ext::sh -c id"), "url must not contain spaces"},
		"ext url without spaces": {url("ext::sh"), "url must be an address of a git repository such as https://"},
		"file url":               {url("file:///etc/passwd"), "url must be an address of a git repository such as https://"},
		"a path as url":          {url("/srv/git/project.git"), "url must be an address of a git repository such as https://"},
		"ssh without a Secret":   {url("ssh://git@host/project.git"), "needs credentialsSecretRef: a Secret with the keys ssh-privatekey and known_hosts"},
		"scp without a Secret":   {url("git@host:project.git"), "needs credentialsSecretRef: a Secret with the keys ssh-privatekey and known_hosts"},
		"ssh without a user":     {bySSH("ssh://host/project.git"), "url must be an address of a git repository such as https://"},
		"ssh with a password":    {bySSH("ssh://git:pw@host/project.git"), "take the credentials out of url"},
		"an option of ssh":       {bySSH("ssh://-oProxyCommand=id/x"), "url must be an address of a git repository such as https://"},
		"an option as a host":    {bySSH("ssh://git@-oProxyCommand=id/x"), "url must be an address of a git repository such as https://"},
		"an escaped option":      {bySSH("ssh://%2doProxyCommand=id@host/x"), "url must be an address of a git repository such as https://"},
		"scp to an option":       {bySSH("git@-oProxyCommand=id:x"), "url must be an address of a git repository such as https://"},
		"an option as a path":    {bySSH("git@host:-oProxyCommand=id"), "url must be an address of a git repository such as https://"},
		"scp and a scheme":       {bySSH("git@host:a://b"), "url must be an address of a git repository such as https://"},
		"a program as a host":    {bySSH("git@$(id):x"), "url must be an address of a git repository such as https://"},
		"url begins with -":      {url("-oProxyCommand=id"), "url must not begin with '-'"},
		"credentials in url":     {url("https://me:secret@git.example.com/p.git"), "take the credentials out of url"},
		"a user in url":          {url("https://me@git.example.com/p.git"), "take the credentials out of url"},
		"url with control":       {url("https://git.example.com/p\x7f.git"), "url must not contain spaces or control characters"},
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
		"an unknown action":       {rule("Bash", "Perhaps", ""), `supported values: "Checkpoint", "Ask", "Deny"`},
		"a message for nobody":    {rule("Bash", v1alpha1.RiskyToolCheckpoint, "no"), "only a rule with the action Ask or Deny has a message"},
		"a message of two lines":  {rule("Bash", v1alpha1.RiskyToolDeny, "no\nno"), "message must be one line of text"},
		"no time to answer":       {spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.ApprovalDeadlineSeconds = new(int32) }), "should be greater than or equal to 10"},
		"a month to answer":       {spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.ApprovalDeadlineSeconds = ptr.To[int32](2592000) }), "should be less than or equal to 1209600"},
		"an answer of perhaps":    {decisions(v1alpha1.Decision{RequestID: "1-a", Answer: "Perhaps"}), `supported values: "Approve", "Deny"`},
		"an answer to nothing":    {decisions(v1alpha1.Decision{Answer: v1alpha1.AnswerDeny}), "spec.decisions[0].requestID"},
		"an answer to all":        {decisions(v1alpha1.Decision{RequestID: "*", Answer: v1alpha1.AnswerDeny}), "requestID must be the id of a request"},
		"two answers":             {decisions(v1alpha1.Decision{RequestID: "a", Answer: v1alpha1.AnswerDeny}, v1alpha1.Decision{RequestID: "a", Answer: v1alpha1.AnswerApprove}), "Duplicate value"},
		"a reason of two lines":   {decisions(v1alpha1.Decision{RequestID: "a", Answer: v1alpha1.AnswerDeny, Reason: "a\nb"}), "reason must be one line of text"},
		"too many answers":        {decisions(manyDecisions(65)...), "must have at most 64 items"},
		"an unknown tool":         {tools("task_destroy"), `supported values: "checkpoint", "checkpoints", "history_search", "diff", "task_create"`},
		"a supervisor's tool":     {tools("diff", "task_create"), "only a supervisor has the tools that begin with task_, phase_set and publish: set role to Supervisor"},
		"a supervisor's publish":  {tools("publish"), "only a supervisor has the tools"},
		"a tool given twice":      {tools("diff", "diff"), "Duplicate value"},
		"a snapshot each message": {snapshotEvery(1), "snapshotEveryMessages must be 0, for no automatic snapshots, or at least 5"},
		"a negative number":       {snapshotEvery(-1), "should be greater than or equal to 0"},
		"too little context":      {limits(v1alpha1.ContextLimits{Bytes: ptr.To[int32](10)}), "should be greater than or equal to 1000"},
		"too much context":        {limits(v1alpha1.ContextLimits{Bytes: ptr.To[int32](2_000_000)}), "should be less than or equal to 1000000"},
		"half a summary":          {limits(v1alpha1.ContextLimits{Summary: "Half"}), `supported values: "Include", "Exclude"`},
		"unknown mode":            {spec(func(s *v1alpha1.TaskSpec) { s.OperatingMode = "Jogging" }), `supported values: "Running", "Suspended"`},
		"unknown beforeRun":       {spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.BeforeRun = "Perhaps" }), `supported values: "Never", "Always"`},
		"unknown retention":       {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.Retention = "Perhaps" }), `supported values: "Delete", "Retain"`},
		"negative backoff":        {builders.BackoffLimit(-1), "should be greater than or equal to 0"},
		"a deadline of no time":   {spec(func(s *v1alpha1.TaskSpec) { s.DeadlineSeconds = new(int64) }), "deadlineSeconds must be from 1 to 31536000, which is a year: leave it out for no deadline"},
		"a deadline in the past":  {builders.Deadline(-5), "deadlineSeconds must be from 1 to 31536000"},
		"a deadline after a year": {builders.Deadline(31536001), "deadlineSeconds must be from 1 to 31536000"},
		"retries nothing":         {retryOn(v1alpha1.FailureMatcher{}), "this selects nothing: set exitCodes, reasons or both"},
		"fails on nothing":        {failOn(v1alpha1.FailureMatcher{ExitCodes: []int32{}}), "this selects nothing: set exitCodes, reasons or both"},
		"fails on success":        {failOn(v1alpha1.FailureMatcher{ExitCodes: []int32{3, 0}}), "exitCodes are from 1 to 255: an agent that exits with 0 has completed the task"},
		"retries code 256":        {retryOn(v1alpha1.FailureMatcher{ExitCodes: []int32{256}}), "exitCodes are from 1 to 255"},
		"retries a negative code": {retryOn(v1alpha1.FailureMatcher{ExitCodes: []int32{-1}}), "exitCodes are from 1 to 255"},
		"a code twice":            {retryOn(v1alpha1.FailureMatcher{ExitCodes: []int32{3, 3}}), "Duplicate value"},
		"too many codes":          {retryOn(v1alpha1.FailureMatcher{ExitCodes: exitCodes(33)}), "must have at most 32 items"},
		"retries a bad mood":      {retryOn(v1alpha1.FailureMatcher{Reasons: []v1alpha1.AgentFailureReason{"BadMood"}}), `supported values: "AgentFailed", "AgentUnauthorized", "AgentOutOfCredit"`},
		"retries a lost pod":      {retryOn(v1alpha1.FailureMatcher{Reasons: []v1alpha1.AgentFailureReason{"PodLost"}}), "Unsupported value"},
		"a code retries and fails": {func(t *v1alpha1.Task) {
			retryOn(v1alpha1.FailureMatcher{ExitCodes: []int32{3, 4}})(t)
			failOn(v1alpha1.FailureMatcher{ExitCodes: []int32{5, 4}})(t)
		}, "retryOn and failOn have an exit code or a reason in common"},
		"a reason retries and fails": {func(t *v1alpha1.Task) {
			retryOn(v1alpha1.FailureMatcher{Reasons: []v1alpha1.AgentFailureReason{"AgentFailed", "AgentRateLimited"}})(t)
			failOn(v1alpha1.FailureMatcher{ExitCodes: []int32{4}, Reasons: []v1alpha1.AgentFailureReason{"AgentRateLimited"}})(t)
		}, "retryOn and failOn have an exit code or a reason in common"},
		"negative interval":   {spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.EverySeconds = ptr.To[int32](-1) }), "should be greater than or equal to 0"},
		"negative tool calls": {spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.EveryToolCalls = ptr.To[int32](-1) }), "should be greater than or equal to 0"},
		"no file at all":      {spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.MaxFileBytes = ptr.To[int64](0) }), "should be greater than or equal to 1"},
		"nothing is kept":     {builders.KeepLast(0), "this would remove every checkpoint: set keepLast to at least 1"},
		"fewer than nothing":  {builders.KeepLast(-1), "should be greater than or equal to 0"},
		"too many objects":    {builders.KeepLast(10001), "should be less than or equal to 10000"},
		"kept into the past":  {spec(func(s *v1alpha1.TaskSpec) { s.CheckpointPolicy.Retention.KeepForSeconds = ptr.To[int32](-1) }), "should be greater than or equal to 0"},
		"time before the end": {spec(func(s *v1alpha1.TaskSpec) { s.OnFinish = &v1alpha1.OnFinish{AfterSeconds: -1} }), "spec.onFinish.afterSeconds"},
		"node lost too soon":  {spec(func(s *v1alpha1.TaskSpec) { s.NodeLoss.AfterSeconds = 29 }), "nodeLoss.afterSeconds must be from 30 to 86400"},
		"node lost too late":  {spec(func(s *v1alpha1.TaskSpec) { s.NodeLoss.AfterSeconds = 86401 }), "nodeLoss.afterSeconds must be from 30 to 86400"},
		"unknown node policy": {spec(func(s *v1alpha1.TaskSpec) { s.NodeLoss.Policy = "Move" }), "spec.nodeLoss.policy"},
		"unknown end":         {spec(func(s *v1alpha1.TaskSpec) { s.OnFinish = &v1alpha1.OnFinish{Action: "Archive"} }), "spec.onFinish.action"},
		"deleted and adopting": {spec(func(s *v1alpha1.TaskSpec) {
			s.Adopt, s.OnFinish = v1alpha1.AdoptLatest, &v1alpha1.OnFinish{Action: v1alpha1.FinishDelete}
		}), "onFinish.action Delete cannot go with adopt: Latest"},
		"unknown suspension":  {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.WhenSuspended = "Freeze" }), "spec.workspace.whenSuspended"},
		"negative size":       {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.Size = resource.MustParse("-1Gi") }), "size must be more than zero"},
		"other access mode":   {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.AccessMode = "ReadWriteMany" }), "Unsupported value"},
		"empty storage class": {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.StorageClassName = ptr.To("") }), "leave storageClassName out"},
		"state path outside":  {spec(func(s *v1alpha1.TaskSpec) { s.Agent.StatePaths = []string{"../x"} }), "statePaths are relative"},
		"absolute state path": {spec(func(s *v1alpha1.TaskSpec) { s.Agent.StatePaths = []string{"/etc"} }), "statePaths are relative"},
		"secret elsewhere": {spec(func(s *v1alpha1.TaskSpec) {
			s.Repository.CredentialsSecretRef = &v1alpha1.NameReference{Name: "other/secret"}
		}), "a reference contains no '/'"},
		"no lost records":           {spec(func(s *v1alpha1.TaskSpec) { s.Acknowledge = &v1alpha1.Acknowledgement{} }), "should be greater than or equal to 1"},
		"starts from itself":        {func(t *v1alpha1.Task) { builders.StartFrom(t.Name, "")(t) }, "startFrom cannot name the task itself"},
		"starts from elsewhere":     {builders.StartFrom("other/task", ""), "a reference contains no '/'"},
		"copies files to a branch":  {copyFiles("src/"), "with copyFiles the task starts on its own repository.ref"},
		"copies from elsewhere":     {copyFiles("../secret"), "a path is relative to the worktree"},
		"copies a repository":       {copyFiles("src/.git/config"), "a path cannot select the files of a git repository itself"},
		"starts from no moment":     {startAt(v1alpha1.StartPoint{}, ""), "set exactly one of checkpointRef, checkpointNumber, message and time in at"},
		"starts from two":           {startAt(v1alpha1.StartPoint{Message: ptr.To[int64](1)}, "c"), "startFrom has both at and checkpointRef"},
		"depends on itself":         {func(t *v1alpha1.Task) { builders.DependsOn("other", t.Name)(t) }, "dependsOn cannot name the task itself"},
		"depends on one twice":      {builders.DependsOn("a", "b", "a"), "dependsOn names a task twice"},
		"depends on elsewhere":      {builders.DependsOn("other/task"), "a reference contains no '/'"},
		"depends on no task's name": {builders.DependsOn("Foo Bar"), "taskRef.name is no name of a Task"},
		"depends on too many":       {builders.DependsOn(manyNames(33)...), "must have at most 32 items"},
		"depends on what?": {spec(func(s *v1alpha1.TaskSpec) {
			s.DependsOn = []v1alpha1.Dependency{{TaskRef: v1alpha1.NameReference{Name: "a"}, Condition: "Started"}}
		}), `supported values: "Completed", "Finished"`},
		"too urgent":         {builders.Priority(1001), "should be less than or equal to 1000"},
		"not urgent enough":  {builders.Priority(-1001), "should be greater than or equal to -1000"},
		"adopts what?":       {func(t *v1alpha1.Task) { t.Spec.Adopt = "Newest" }, "Unsupported value"},
		"starts from no UID": {func(t *v1alpha1.Task) { builders.StartFrom("a", "")(t); t.Spec.StartFrom.TaskUID = "a b" }, "taskUID must be the UID of a task"},
	}
}

func retryOn(m v1alpha1.FailureMatcher) change {
	return spec(func(s *v1alpha1.TaskSpec) { s.RetryOn = &m })
}

func failOn(m v1alpha1.FailureMatcher) change {
	return spec(func(s *v1alpha1.TaskSpec) { s.FailOn = &m })
}

// exitCodes returns the first n exit codes of failures.
func exitCodes(n int32) (codes []int32) {
	for code := range n {
		codes = append(codes, code+1)
	}
	return codes
}

// copyFiles makes a task copy files of another one, on a branch if the path is a good one.
func copyFiles(path string) change {
	return spec(func(s *v1alpha1.TaskSpec) {
		s.StartFrom = &v1alpha1.StartFrom{TaskRef: v1alpha1.NameReference{Name: "other"}, CopyFiles: []string{path}}
		if path == "src/" {
			s.StartFrom.Branch = "try/it"
		}
	})
}

// manyNames returns so many names of tasks.
func manyNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("task-%d", i))
	}
	return names
}

func TestDependenciesMayBeChangedUntilTheTaskStarts(t *testing.T) {
	created(t, builders.Task("dependent", builders.DependsOn("a")))
	changes := map[string]change{
		"another":  builders.DependsOn("b"),
		"none":     spec(func(s *v1alpha1.TaskSpec) { s.DependsOn = nil }),
		"finished": builders.Finished,
	}
	task := live(t, "dependent")
	task.Status.Dependencies = []v1alpha1.DependencyStatus{{Name: "a", State: v1alpha1.DependencyFailed}}
	must(t, server.Client.Status().Update(t.Context(), task))
	for name, do := range changes {
		changed := task.DeepCopy()
		do(changed)
		if err := server.Client.Update(t.Context(), changed, client.DryRunAll); err != nil {
			t.Errorf("%s is refused before the start: %v", name, err)
		}
	}
	task.Status.Attempts = []v1alpha1.Attempt{{Number: 1}}
	must(t, server.Client.Status().Update(t.Context(), task))
	for name, do := range changes {
		changed := task.DeepCopy()
		do(changed)
		t.Run(name, func(t *testing.T) {
			expectRefused(t, server.Client.Update(t.Context(), changed, client.DryRunAll), "dependsOn is immutable once the task has started")
		})
	}
	builders.Priority(7)(task)
	if err := server.Client.Update(t.Context(), task, client.DryRunAll); err != nil {
		t.Errorf("another priority is refused: %v", err)
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
				t.Error("the update was accepted")
			} else if !strings.Contains(err.Error(), c.sentence) && !strings.Contains(err.Error(), "is immutable") {
				t.Errorf("the update is refused with %q", err)
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

func TestNamesThatAreTooLongForPodsAreRefused(t *testing.T) {
	expectRefused(t, create(builders.Task(strings.Repeat("n", 47))), "use at most 46 characters")
	expectRefused(t, create(builders.Task("has.dots")), "lower-case letters, digits and '-' only")
	if err := create(builders.Task(strings.Repeat("n", 46))); err != nil {
		t.Errorf("46 characters are refused: %v", err)
	}
}

// TestABadPlaceInAContractIsRefused: what a Task's own fields tell is refused when it is applied.
func TestABadPlaceInAContractIsRefused(t *testing.T) {
	supervisor := func(phase string, phases ...string) func(*v1alpha1.TaskSpec) {
		return func(s *v1alpha1.TaskSpec) {
			s.Role, s.Contract = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "port", Phase: phase, Phases: phases}
		}
	}
	children := func(n int32) func(*v1alpha1.TaskSpec) {
		return func(s *v1alpha1.TaskSpec) {
			supervisor("")(s)
			s.Children = &v1alpha1.Children{Maximum: &n}
		}
	}
	atOnce := func(n int32) func(*v1alpha1.TaskSpec) {
		return func(s *v1alpha1.TaskSpec) {
			supervisor("")(s)
			s.Children = &v1alpha1.Children{AtOnce: &n}
		}
	}
	for name, c := range map[string]struct {
		change   func(*v1alpha1.TaskSpec)
		sentence string
	}{
		"a supervisor of nothing":         {func(s *v1alpha1.TaskSpec) { s.Role = v1alpha1.RoleSupervisor }, "a supervisor leads a contract: set contract.name"},
		"another role":                    {func(s *v1alpha1.TaskSpec) { s.Role = "Boss" }, "supported values: \"Worker\", \"Supervisor\""},
		"a worker that lists phases":      {func(s *v1alpha1.TaskSpec) { s.Contract = &v1alpha1.Contract{Name: "port", Phases: []string{"One"}} }, "only a contract's supervisor lists its phases"},
		"a worker with children":          {func(s *v1alpha1.TaskSpec) { s.Children = &v1alpha1.Children{} }, "only a supervisor has children"},
		"a name that no label carries":    {func(s *v1alpha1.TaskSpec) { s.Contract = &v1alpha1.Contract{Name: "Port to Go"} }, "contract.name must be lower-case letters"},
		"a phase that no label carries":   {func(s *v1alpha1.TaskSpec) { s.Contract = &v1alpha1.Contract{Name: "port", Phase: "to do"} }, "contract.phase must begin and end with a letter"},
		"phases that no label carries":    {supervisor("", "One", "-Two"), "each of contract.phases must begin and end"},
		"the same phase twice":            {supervisor("", "One", "One"), "Duplicate value"},
		"33 phases":                       {supervisor("", strings.Split(strings.Repeat("p", 33), "")...), "must have at most 32 items"},
		"a phase that is not listed":      {supervisor("Three", "One", "Two"), "contract.phase is not one of the contract's phases"},
		"a phase that is none by default": {supervisor("Deploy"), "contract.phase is not one of the contract's phases"},
		"1,001 children":                  {children(1001), "less than or equal to 1000"},
		"less than no children":           {children(-1), "greater than or equal to 0"},
		"no child at once":                {atOnce(0), "greater than or equal to 1"},
		"1,001 children at once":          {atOnce(1001), "less than or equal to 1000"},
		"the tool publish and no branch":  {func(s *v1alpha1.TaskSpec) { supervisor("")(s); s.Tools = []v1alpha1.AgentTool{"publish"} }, "the tool publish pushes to the branch in spec.publish: set publish"},
		"what a worker would publish":     {func(s *v1alpha1.TaskSpec) { s.Publish = &v1alpha1.Publish{Branch: "b", When: v1alpha1.PublishCalled} }, "only a supervisor's agent has the tool publish, with which work is published when it is called"},
		"a task that is its own child":    {func(s *v1alpha1.TaskSpec) { s.ParentRef = &v1alpha1.NameReference{Name: "bad-place"} }, "parentRef cannot name the task itself"},
		"a parent with no task's name":    {func(s *v1alpha1.TaskSpec) { s.ParentRef = &v1alpha1.NameReference{Name: "Foo Bar"} }, "parentRef.name is no name of a Task"},
		"a parent with a name too long":   {func(s *v1alpha1.TaskSpec) { s.ParentRef = &v1alpha1.NameReference{Name: strings.Repeat("x", 47)} }, "parentRef.name is no name of a Task"},
		"a parent of another namespace":   {func(s *v1alpha1.TaskSpec) { s.ParentRef = &v1alpha1.NameReference{Name: "other/lead"} }, "cannot name another namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			expectRefused(t, create(builders.Task("bad-place", spec(c.change))), c.sentence)
		})
	}

	if err := create(builders.Task("all-tools", spec(supervisor("")), tools(append(v1alpha1.DefaultTools(), v1alpha1.SupervisorTools()...)...), publish(func(*v1alpha1.Publish) {}))); err != nil {
		t.Errorf("a supervisor with all tools is refused: %v", err)
	}
	lead := created(t, builders.Task("lead", spec(supervisor("Plan")), spec(func(s *v1alpha1.TaskSpec) { s.ParentRef = &v1alpha1.NameReference{Name: "above"} })))
	for name, c := range map[string]struct {
		change   func(*v1alpha1.TaskSpec)
		sentence string
	}{
		"another role":     {func(s *v1alpha1.TaskSpec) { s.Role = v1alpha1.RoleWorker }, "role is immutable"},
		"another contract": {func(s *v1alpha1.TaskSpec) { s.Contract.Name = "harbour" }, "contract.name is immutable"},
		"another parent":   {func(s *v1alpha1.TaskSpec) { s.ParentRef.Name = "beside" }, "parentRef is immutable"},
		"no parent":        {func(s *v1alpha1.TaskSpec) { s.ParentRef = nil }, "parentRef is immutable"},
	} {
		t.Run("afterwards: "+name, func(t *testing.T) {
			updated := lead.DeepCopy()
			c.change(&updated.Spec)
			expectRefused(t, server.Client.Update(t.Context(), updated, client.DryRunAll), c.sentence)
		})
	}
	moved := lead.DeepCopy()
	moved.Spec.Contract.Phase, moved.Spec.Children = "Execute", &v1alpha1.Children{Maximum: ptr.To[int32](1000)}
	if err := server.Client.Update(t.Context(), moved, client.DryRunAll); err != nil {
		t.Errorf("another phase is refused: %v", err)
	}
}

func TestImmutableFields(t *testing.T) {
	existing := created(t, builders.Task("fixed", builders.StartFrom("other", "")))
	for name, c := range map[string]struct {
		change   change
		sentence string
	}{
		"prompt":            {spec(func(s *v1alpha1.TaskSpec) { s.Prompt = ptr.To("Other.") }), "prompt is immutable"},
		"startFrom":         {builders.StartFrom("another", ""), "startFrom is immutable"},
		"startFrom removed": {spec(func(s *v1alpha1.TaskSpec) { s.StartFrom = nil }), "startFrom is immutable"},
		"smaller size":      {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.Size = resource.MustParse("4Gi") }), "workspace.size may grow, but not shrink: set it to what it was or to more"},
		"access mode":       {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.AccessMode = v1alpha1.WorkspaceReadWriteOncePod }), "workspace.storageClassName and workspace.accessMode are immutable"},
		"storage class":     {spec(func(s *v1alpha1.TaskSpec) { s.Workspace.StorageClassName = ptr.To("fast") }), "workspace.storageClassName and workspace.accessMode are immutable"},
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
		t.Errorf("the same size in another unit is refused: %v", err)
	}
	larger := existing.DeepCopy()
	larger.Spec.Workspace.Size = resource.MustParse("6Gi")
	larger.Spec.Workspace.WhenSuspended = v1alpha1.WhenSuspendedRelease
	larger.Spec.OnFinish = &v1alpha1.OnFinish{AfterSeconds: 0, Action: v1alpha1.FinishDelete}
	if err := server.Client.Update(t.Context(), larger, client.DryRunAll); err != nil {
		t.Errorf("a larger size, a release and an end for the task are refused: %v", err)
	}
}

// TestARepositoryMayBeCorrectedUntilTheWorkspaceIsLaidOut: afterwards, and while a pod tries,
// it is immutable.
func TestARepositoryMayBeCorrectedUntilTheWorkspaceIsLaidOut(t *testing.T) {
	ready := func(status metav1.ConditionStatus, reason string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.TaskWorkspaceReady, Status: status, Reason: reason, LastTransitionTime: metav1.Now()}}
	}
	ended := func(outcome v1alpha1.AttemptOutcome) []v1alpha1.Attempt {
		return []v1alpha1.Attempt{{Number: 1, Outcome: outcome}}
	}
	created(t, builders.Task("corrected"))
	for name, c := range map[string]struct {
		status  v1alpha1.TaskStatus
		refused bool
	}{
		"not started":           {v1alpha1.TaskStatus{}, false},
		"not found":             {v1alpha1.TaskStatus{Attempts: ended(v1alpha1.AttemptBlocked), Conditions: ready(metav1.ConditionFalse, v1alpha1.ReasonRepositoryNotFound)}, false},
		"not reached":           {v1alpha1.TaskStatus{Attempts: ended(v1alpha1.AttemptPrepareFailed), Conditions: ready(metav1.ConditionFalse, v1alpha1.ReasonRepositoryUnreachable)}, false},
		"suspended on the way":  {v1alpha1.TaskStatus{Attempts: ended(v1alpha1.AttemptSuspended), Conditions: ready(metav1.ConditionUnknown, v1alpha1.ReasonPreparing)}, false},
		"a pod tries":           {v1alpha1.TaskStatus{Attempts: ended(""), Conditions: ready(metav1.ConditionFalse, v1alpha1.ReasonRepositoryUnreachable)}, true},
		"laid out":              {v1alpha1.TaskStatus{Attempts: ended(v1alpha1.AttemptSuspended), Conditions: ready(metav1.ConditionTrue, v1alpha1.ReasonWorkspacePrepared)}, true},
		"laid out, then broken": {v1alpha1.TaskStatus{Attempts: ended(v1alpha1.AttemptBlocked), Conditions: ready(metav1.ConditionFalse, v1alpha1.ReasonVolumeFull)}, true},
		"has checkpoints":       {v1alpha1.TaskStatus{CheckpointCount: 1}, true},
		"starts from another":   {v1alpha1.TaskStatus{Source: &v1alpha1.SourceStatus{TaskUID: "u", Checkpoint: 1, Commit: "c"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			task := live(t, "corrected")
			task.Status = c.status
			must(t, server.Client.Status().Update(t.Context(), task))
			for change, do := range map[string]change{
				"another url": url("https://git.example.com/other.git"),
				"another ref": ref("other"),
				"none":        spec(func(s *v1alpha1.TaskSpec) { s.Repository = nil }),
			} {
				updated := task.DeepCopy()
				do(updated)
				err := server.Client.Update(t.Context(), updated, client.DryRunAll)
				if c.refused {
					expectRefused(t, err, "repository is immutable once the workspace was laid out")
				} else if err != nil {
					t.Errorf("%s is refused: %v", change, err)
				}
			}
		})
	}
}

func TestGoodTasksAreAccepted(t *testing.T) {
	for name, c := range map[string]change{
		"no repository":       spec(func(s *v1alpha1.TaskSpec) { s.Repository = nil }),
		"a commit":            ref("0123456789abcdef0123456789abcdef01234567"),
		"a branch with dirs":  ref("feature/one.two"),
		"plain http":          url("http://git.svc:8080/p.git"),
		"ssh":                 bySSH("ssh://git@git.example.com:2222/team/project.git"),
		"ssh to an address":   bySSH("ssh://git@[fd00::1]:22/project.git"),
		"as scp does":         bySSH("git@git.example.com:team/project.git"),
		"a prompt with lines": spec(func(s *v1alpha1.TaskSpec) { s.Prompt = ptr.To("one\n\ttwo: $(HOME) €") }),
		"a known agent":       func(t *v1alpha1.Task) { typed(&t.Spec); t.Spec.Template.Spec.Containers[0].Command = nil },
		"a model":             model("anthropic/claude-sonnet-4-5[1m]"),
		"starts and adopts":   func(t *v1alpha1.Task) { builders.StartFrom("a", "")(t); t.Spec.Adopt = v1alpha1.AdoptLatest },
		"a year":              builders.Deadline(31536000),
		"all that may fail": func(t *v1alpha1.Task) {
			retryOn(v1alpha1.FailureMatcher{ExitCodes: exitCodes(32), Reasons: []v1alpha1.AgentFailureReason{
				"AgentFailed", "AgentUnauthorized", "AgentOutOfCredit", "AgentRateLimited", "AgentTooOld",
			}})(t)
			failOn(v1alpha1.FailureMatcher{ExitCodes: []int32{255, 128}, Reasons: []v1alpha1.AgentFailureReason{
				"AgentOptionsInvalid", "ModelErrors", "ProgramNotFound", "ProgramNotExecutable",
			}})(t)
		},
		"only one of them":   retryOn(v1alpha1.FailureMatcher{Reasons: []v1alpha1.AgentFailureReason{"AgentOutOfCredit"}}),
		"risky tools":        risky(`^(Bash|shell)$`, `\bterraform\s+destroy`),
		"many dependencies":  builders.DependsOn(manyNames(32)...),
		"the least priority": builders.Priority(-1000),
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

// tools gives the agent the named tools.
func tools(names ...v1alpha1.AgentTool) change {
	return spec(func(s *v1alpha1.TaskSpec) { s.Tools = append([]v1alpha1.AgentTool{}, names...) })
}
