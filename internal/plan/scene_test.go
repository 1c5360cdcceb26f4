package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/reason"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// scene is a cluster with one task: it carries out plans as the controller does, and a test
// says what pods, people and stores do.
type scene struct {
	*testing.T
	o      Observed
	now    time.Time
	claims int
	writes int
	// plans are the plans of the last step.
	plans []Plan
	// stored and class are what the stores say when a decision depends on it, and requested is the
	// checkpoint that was last requested to be verified.
	stored    Stored
	requested int64
	class     StorageClass
	// volume is the PersistentVolume of each claim, and durable the last durable checkpoint.
	volume  Volume
	durable Durable
	// results are what the children have said, and asked is how often that was asked for.
	results Results
	asked   int
	// deleted is set once the Task is being deleted because it has finished.
	deleted bool
}

func newScene(t *testing.T, options ...builders.TaskOption) *scene {
	t.Helper()
	s := &scene{T: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	options = append([]builders.TaskOption{builders.WithUID("uid-of-task")}, options...)
	s.o = Observed{Task: builders.Task("tidy-up", options...), NewID: "random", Limits: DefaultLimits()}
	s.o.Task.Finalizers = []string{v1alpha1.TaskFinalizer}
	s.o.History, s.o.Publication, s.o.Elsewhere = History{Known: true}, Publication{Known: true}, true
	return s
}

// running returns a scene whose agent is running in attempt 1.
func running(t *testing.T, options ...builders.TaskOption) *scene {
	t.Helper()
	s := newScene(t, options...)
	s.step()
	s.prepared(daemonapi.PrepareResult{Reason: v1alpha1.ReasonWorkspacePrepared})
	s.agentRuns()
	return s
}

// completedTask returns a scene whose agent has exited with 0, with one checkpoint.
func completedTask(t *testing.T, options ...builders.TaskOption) *scene {
	t.Helper()
	s := running(t, options...)
	s.record(v1alpha1.TriggerCompletion)
	s.agentExits(0)
	s.podFinishes()
	s.wantState(v1alpha1.ReasonCompleted)
	return s
}

// step decides, and carries out plans until there is nothing left to do.
func (s *scene) step() *scene {
	s.Helper()
	s.plans = nil
	for range 12 {
		p := s.decide()
		if again := Decide(s.o, s.now); !equality.Semantic.DeepEqual(again, p) {
			s.Fatal("the same observation gave two plans")
		}
		s.plans = append(s.plans, p)
		s.sameFromCache(p)
		if !p.Acts() {
			return s
		}
		s.carryOut(p)
		s.checkReasons()
	}
	s.Fatalf("still a plan after 12 rounds: %+v", s.plans[len(s.plans)-1])
	return s
}

// decide decides, and once more with what the decision depends on.
func (s *scene) decide() Plan {
	s.o.Stored, s.o.StorageClass, s.o.Volume, s.o.Durable = Stored{}, StorageClass{}, Volume{}, Durable{}
	s.o.PodDigest, s.o.Results = "", Results{}
	if s.o.TemplateProblem == "" {
		s.o.PodDigest, _ = resources.PodDigest(s.o.Task)
	}
	p := Decide(s.o, s.now)
	for range 3 {
		if p.Inspect == 0 && p.InspectClass == "" && p.InspectVolume == "" && !p.InspectDurable && !p.InspectResults {
			break
		}
		s.inspect(p)
		p = Decide(s.o, s.now)
	}
	return p
}

// inspect looks at what a plan asks for.
func (s *scene) inspect(p Plan) {
	if p.InspectVolume != "" {
		s.o.Volume = s.volume
		s.o.Volume.Name = p.InspectVolume
	}
	if p.InspectDurable {
		s.o.Durable = s.durable
	}
	if p.InspectResults {
		s.asked++
		s.o.Results = s.results
	}
	if p.Inspect != 0 && s.stored.Known {
		s.o.Stored = s.stored
		s.o.Stored.Checkpoint.Number = p.Inspect
		if p.Inspect != s.requested {
			s.o.Stored.Checkpoint.Integrity.Requests = history.Requests{}
		}
	}
	if p.InspectClass != "" {
		s.o.StorageClass = s.class
	}
}

// checkReasons checks that the table of reasons lists each reason of the status for the
// place at which it occurs. A problem may be one that only a newer daemon knows.
func (s *scene) checkReasons() {
	s.Helper()
	status := s.o.Task.Status
	unknownProblem := ""
	if p := s.o.History.State.Problem; p != nil && reason.Find(p.Reason).Meaning == "" {
		unknownProblem = p.Reason
	}
	for _, c := range status.Conditions {
		if c.Reason == unknownProblem {
			continue
		}
		if !slices.Contains(reason.Find(c.Reason).On, reason.Place{Kind: "Task", Condition: c.Type}) {
			s.Errorf("the table of reasons does not have %s for the condition %s (%s)", c.Reason, c.Type, c.Message)
		}
	}
	for _, o := range []*v1alpha1.OperationStatus{status.Resume, status.Rewind} {
		if o == nil || o.Reason == "" {
			continue
		}
		if !slices.Contains(reason.Find(o.Reason).On, reason.Place{Kind: "Task", Condition: reason.Operation}) {
			s.Errorf("the table of reasons does not have %s for an operation (%s)", o.Reason, o.Message)
		}
	}
	for _, e := range status.History {
		if !slices.Contains(reason.Find(e.Reason).On, reason.Place{Kind: "Task", Condition: reason.Timeline}) {
			s.Errorf("the table of reasons does not have %s for the timeline (%s)", e.Reason, e.Message)
		}
	}
}

func (s *scene) carryOut(p Plan) {
	for _, ref := range p.StopPods {
		s.o.Publishers = slices.DeleteFunc(s.o.Publishers, func(pod corev1.Pod) bool { return pod.Name == ref.Name })
		s.o.Pods = slices.DeleteFunc(s.o.Pods, func(pod corev1.Pod) bool {
			return pod.Name == ref.Name && inspect(&pod).finished
		})
		for i := range s.o.Pods {
			if s.o.Pods[i].Name == ref.Name {
				s.o.Pods[i].DeletionTimestamp = ptr.To(metav1.NewTime(s.now))
			}
		}
	}
	if p.CreateClaim {
		s.claims++
		s.o.Claim = resources.NewClaim(s.o.Task, "")
		s.o.Claim.UID = types.UID(fmt.Sprintf("claim-%d", s.claims))
		p.Status.ClaimUID = string(s.o.Claim.UID)
	}
	if p.Write {
		s.writes++
		if n := newest(p.Status); n != newest(s.o.Task.Status) {
			s.o.ReservedAttempt, s.o.MadePodUID = n, ""
		}
		if n := newestPublisher(p.Status); n != newestPublisher(s.o.Task.Status) {
			s.o.ReservedPublisher = n
		}
		if p.Status.ClaimName != s.o.Task.Status.ClaimName && s.o.Claim != nil {
			s.o.FormerClaims, s.o.Claim = append(s.o.FormerClaims, *s.o.Claim), nil
		}
		s.o.Task.Status = p.Status
		s.o.LastWrite, s.o.PublisherRefused = s.now, ""
	}
	s.recall(p.LostSpending)
	s.recallOfContract(p.LostOfContract)
	if p.RequestStart != nil {
		s.o.PhaseStart = p.RequestStart
		s.o.PhaseStart.CreationTimestamp = metav1.NewTime(s.now)
	}
	for _, ref := range p.DropClaims {
		s.o.FormerClaims = slices.DeleteFunc(s.o.FormerClaims, func(c corev1.PersistentVolumeClaim) bool { return string(c.UID) == ref.UID })
	}
	if p.DeleteClaim != "" {
		if !p.Write && s.o.Task.Status.Released == nil {
			s.Error("a claim is deleted, and the status does not say that it was released")
		}
		s.o.Claim = nil
	}
	if p.GrowClaim != nil {
		s.o.Claim.Spec.Resources.Requests[corev1.ResourceStorage] = p.GrowClaim.Size
	}
	if p.Verify != nil {
		s.requested = p.Verify.Checkpoint
		s.stored.Checkpoint.Integrity.Requests = history.Requests{Pending: p.Verify.Since.Time}
	}
	if p.DeleteTask {
		s.deleted = true
		s.o.Task.DeletionTimestamp = ptr.To(metav1.NewTime(s.now))
	}
	if p.StartPod != nil {
		s.startPod(p.StartPod)
	}
	if p.StartPublisher != nil {
		s.startPublisher(p.StartPublisher)
	}
	if p.Farewell != nil {
		s.o.Task.Finalizers = nil
	}
}

func newest(s v1alpha1.TaskStatus) int64 {
	if n := len(s.Attempts); n > 0 {
		return s.Attempts[n-1].Number
	}
	return 0
}

func newestPublisher(s v1alpha1.TaskStatus) int64 {
	if s.Publish == nil {
		return 0
	}
	return s.Publish.Number
}

func (s *scene) startPod(p *Pod) {
	for i := range s.o.Pods {
		if !inspect(&s.o.Pods[i]).finished && resources.MountedClaim(&s.o.Pods[i]) == resources.ClaimOf(s.o.Task) {
			s.Fatalf("pod %d was started while pod %s runs: two writers of one worktree", p.Attempt, s.o.Pods[i].Name)
		}
	}
	pod, err := resources.NewPod(resources.PodRequest{Task: s.o.Task, Attempt: p.Attempt, PrepareOnly: p.PrepareOnly}, resources.Options{})
	if err != nil {
		s.Fatal(err)
	}
	pod.UID = types.UID("uid-of-" + pod.Name)
	pod.CreationTimestamp = metav1.NewTime(s.now)
	pod.Status.Phase = corev1.PodPending
	s.o.Pods = append(s.o.Pods, *pod)
	s.o.MadePodUID = string(pod.UID)
}

// wantStarted fails unless the last step started the pod of this attempt, and returns it.
func (s *scene) wantStarted(attempt int64) *Pod {
	s.Helper()
	p := s.started()
	if p == nil {
		s.Fatalf("no pod was started, want that of attempt %d", attempt)
	}
	if p.Attempt != attempt {
		s.Errorf("the pod of attempt %d was started, want that of attempt %d", p.Attempt, attempt)
	}
	return p
}

// wantPod fails unless the last step started this pod.
func (s *scene) wantPod(want Pod) {
	s.Helper()
	if diff := cmp.Diff(&want, s.started()); diff != "" {
		s.Errorf("started pod (-want +got):\n%s", diff)
	}
}

// startedOperation returns the operation of the pod that the last step started.
func (s *scene) startedOperation() daemonapi.Operation {
	s.Helper()
	p := s.started()
	if p == nil {
		s.Fatal("no pod was started")
	}
	if p.Operation == nil {
		s.Fatalf("the pod of attempt %d has no operation", p.Attempt)
	}
	return *p.Operation
}

// wantMessage fails unless the message contains all of the given parts.
func (s *scene) wantMessage(got string, parts ...string) {
	s.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			s.Errorf("the message %q does not contain %q", got, part)
		}
	}
}

// wantStatus fails unless the condition has this status and reason, and a message with all
// of the given parts.
func (s *scene) wantStatus(kind string, status metav1.ConditionStatus, reason string, parts ...string) {
	s.Helper()
	c := s.wantCondition(kind)
	if c.Status != status || c.Reason != reason {
		s.Errorf("%s is %s, %s (%s); want %s, %s", kind, c.Status, c.Reason, c.Message, status, reason)
	}
	s.wantMessage(c.Message, parts...)
}

// started returns the pod that the last step started; nil for none.
func (s *scene) started() *Pod {
	for _, p := range s.plans {
		if p.StartPod != nil {
			return p.StartPod
		}
	}
	return nil
}

func (s *scene) pod() *corev1.Pod {
	s.Helper()
	if len(s.o.Pods) == 0 {
		s.Fatal("there is no pod")
	}
	return &s.o.Pods[len(s.o.Pods)-1]
}

func (s *scene) setContainer(name string, state corev1.ContainerState) {
	pod := s.pod()
	if old := containerStatus(pod, name); old != nil {
		old.State = state
		return
	}
	pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, State: state})
}

func (s *scene) prepared(result daemonapi.PrepareResult) {
	s.Helper()
	s.prepareExits(0, result)
}

func (s *scene) prepareExits(code int32, result daemonapi.PrepareResult) {
	s.Helper()
	message, err := json.Marshal(result)
	if err != nil {
		s.Fatal(err)
	}
	s.setContainer(daemonapi.PrepareContainer, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, Message: string(message), FinishedAt: metav1.NewTime(s.now),
	}})
	if code != 0 || inspect(s.pod()).prepareOnly {
		s.podFinishes()
		return
	}
	s.step()
}

func (s *scene) prepareKilled() {
	s.Helper()
	s.setContainer(daemonapi.PrepareContainer, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 137, Reason: "Error", FinishedAt: metav1.NewTime(s.now),
	}})
	s.podFinishes()
}

func (s *scene) agentRuns() {
	s.Helper()
	s.setContainer(v1alpha1.AgentContainer, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(s.now)}})
	s.pod().Status.Phase = corev1.PodRunning
	s.step()
}

func (s *scene) agentExits(code int32) {
	s.Helper()
	s.setContainer(v1alpha1.AgentContainer, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, StartedAt: metav1.NewTime(inspect(s.pod()).agentStart()), FinishedAt: metav1.NewTime(s.now),
	}})
	s.step()
}

// agentExitsUnseen ends the agent and its pod before anybody decides again.
func (s *scene) agentExitsUnseen(code int32) {
	s.Helper()
	s.setContainer(v1alpha1.AgentContainer, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: code, StartedAt: metav1.NewTime(inspect(s.pod()).agentStart()), FinishedAt: metav1.NewTime(s.now),
	}})
	s.pod().Status.Phase = corev1.PodFailed
}

func (s *scene) podFinishes() {
	s.Helper()
	s.pod().Status.Phase = corev1.PodFailed
	s.step()
}

func (s *scene) podGone() {
	s.Helper()
	s.o.Pods = s.o.Pods[:len(s.o.Pods)-1]
	s.step()
}

// record adds a checkpoint of the newest attempt to the history store.
func (s *scene) record(trigger v1alpha1.CheckpointTrigger) {
	number := s.o.History.State.CheckpointCount + 1
	attempt := s.o.Task.Status.Attempts[len(s.o.Task.Status.Attempts)-1].Number
	s.o.History.State.CheckpointCount = number
	s.o.History.State.Latest = &history.Checkpoint{
		Number: number, Attempt: attempt, Trigger: string(trigger), Time: s.now, Commit: fmt.Sprintf("c%d", number), Durable: true,
	}
}

func (s *scene) recorded() { s.o.Recorded = s.o.Task.Status.HistorySequence }

func (s *scene) change(options ...builders.TaskOption) *scene {
	for _, option := range options {
		option(s.o.Task)
	}
	s.o.Task.Generation++
	return s
}

func (s *scene) checkpoint(number int64) *v1alpha1.Checkpoint {
	return &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Name: resources.CheckpointName(s.o.Task.Name, number)},
		Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: s.o.Task.Name}},
		Status: v1alpha1.CheckpointStatus{
			TaskUID: string(s.o.Task.UID), Number: number, Commit: fmt.Sprintf("c%d", number),
			Conditions: []metav1.Condition{{Type: v1alpha1.CheckpointDurable, Status: metav1.ConditionTrue}},
		},
	}
}

// rewind requests a rewind to a checkpoint that exists.
func (s *scene) rewind(id string, number int64) *scene {
	s.o.RewindTarget = s.checkpoint(number)
	return s.change(builders.Rewind(id, s.o.RewindTarget.Name))
}

// managerRestarts makes a new process responsible for the task from here on.
func (s *scene) managerRestarts() *scene {
	s.o.MadePodUID, s.o.ReservedAttempt, s.o.ReservedPublisher = "", 0, 0
	return s
}

func (s *scene) after(d time.Duration) *scene {
	s.now = s.now.Add(d)
	return s
}

func (s *scene) status() *v1alpha1.TaskStatus { return &s.o.Task.Status }

func (s *scene) lastAttempt() v1alpha1.Attempt {
	return s.status().Attempts[len(s.status().Attempts)-1]
}
