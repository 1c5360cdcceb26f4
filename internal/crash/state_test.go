package crash_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

// What is there at the end of a run, as text: objects, rows and branches. It leaves out what
// differs between any two runs (UIDs, versions and times), and one thing by which a kill may be
// seen: an attempt's number is used once, so that a manager that follows one killed between
// reserving the number and making the pod takes the next. Such an attempt never had a pod. It is
// taken out, and those after it count one less. The same holds for the pods that publish.

// state returns what is there.
func (r *run) state() string {
	r.Helper()
	var b strings.Builder
	for _, list := range []client.ObjectList{
		&v1alpha1.TaskList{}, &v1alpha1.CheckpointList{}, &v1alpha1.ForkList{}, &v1alpha1.ConversationSnapshotList{},
		&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &corev1.ServiceAccountList{},
	} {
		r.Expect(r.client.List(r.ctx, list, client.InNamespace(r.namespace))).To(Succeed())
		r.describe(&b, list)
	}
	r.describeRows(&b)
	refs := r.gitstore.refs()
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		fmt.Fprintf(&b, "ref %s at %s\n", ref, refs[ref])
	}
	return r.plain(b.String())
}

// describe writes the objects of a list.
func (r *run) describe(b *strings.Builder, list client.ObjectList) {
	r.Helper()
	switch l := list.(type) {
	case *v1alpha1.TaskList:
		for i := range l.Items {
			r.withoutActiveTime(&l.Items[i])
			r.withoutSpent(&l.Items[i])
			r.renumberPublisher(&l.Items[i])
			r.object(b, "Task", &l.Items[i], string(l.Items[i].UID), l.Items[i].Spec, l.Items[i].Status)
		}
	case *v1alpha1.CheckpointList:
		for i := range l.Items {
			c := &l.Items[i]
			r.renumberBranches(c)
			r.object(b, "Checkpoint", c, c.Status.TaskUID, c.Spec, c.Status)
		}
	case *v1alpha1.ForkList:
		for i := range l.Items {
			r.object(b, "Fork", &l.Items[i], "", l.Items[i].Spec, l.Items[i].Status)
		}
	case *v1alpha1.ConversationSnapshotList:
		for i := range l.Items {
			s := &l.Items[i]
			r.object(b, "ConversationSnapshot", s, s.Status.TaskUID, s.Spec, s.Status)
		}
	case *corev1.PodList:
		for i := range l.Items {
			r.describePod(b, &l.Items[i])
		}
	case *corev1.PersistentVolumeClaimList:
		for i := range l.Items {
			r.object(b, "Claim", &l.Items[i], "", l.Items[i].Spec, nil)
		}
	case *corev1.ServiceAccountList:
		for i := range l.Items {
			r.object(b, "ServiceAccount", &l.Items[i], "", nil, nil)
		}
	}
}

// object writes an object that belongs to the task with a UID.
func (r *run) object(b *strings.Builder, kind string, o client.Object, task string, spec, status any) {
	r.Helper()
	var owners []string
	for _, owner := range o.GetOwnerReferences() {
		owners = append(owners, owner.Kind+" "+owner.Name)
	}
	text, err := yaml.Marshal(map[string]any{
		"labels": o.GetLabels(), "finalizers": o.GetFinalizers(), "owners": owners, "deleted": o.GetDeletionTimestamp() != nil,
		"spec": spec, "status": status,
	})
	r.Expect(err).NotTo(HaveOccurred())
	fmt.Fprintf(b, "%s %s\n%s\n", kind, o.GetName(), r.renumbered(task, string(text)))
}

// describePod writes what a pod is for, and what has become of it.
func (r *run) describePod(b *strings.Builder, p *corev1.Pod) {
	r.Helper()
	if p.Labels[v1alpha1.LabelPublication] != "" {
		fmt.Fprintf(b, "Pod %s, which publishes: %s\n", p.Name, p.Status.Phase)
		return
	}
	config, err := configOf(p)
	r.Expect(err).NotTo(HaveOccurred())
	operation, err := json.Marshal(config.Operation)
	r.Expect(err).NotTo(HaveOccurred())
	source, err := json.Marshal(config.Source)
	r.Expect(err).NotTo(HaveOccurred())
	fmt.Fprintf(b, "Pod of attempt %d of task %s: %s, deleted %v, operation %s, source %s\n",
		r.renumber(config.TaskUID, config.Attempt), config.Task, p.Status.Phase, p.DeletionTimestamp != nil, operation, source)
}

// spent returns how many attempts of a task below a number had no pod.
func (r *run) spent(uid string, number int64) (n int64) {
	for a := int64(1); a < number; a++ {
		if !r.kubelet.hadPod(uid, a) {
			n++
		}
	}
	return n
}

// renumber returns the number that an attempt would have if each had a pod.
func (r *run) renumber(uid string, number int64) int64 {
	if uid == "" || number == 0 {
		return number
	}
	return number - r.spent(uid, number)
}

var attemptInText = regexp.MustCompile(`(attempt:? )(\d+)`)

// renumbered renumbers the attempts in a text about a task.
func (r *run) renumbered(uid, text string) string {
	return attemptInText.ReplaceAllStringFunc(text, func(found string) string {
		m := attemptInText.FindStringSubmatch(found)
		n, err := strconv.ParseInt(m[2], 10, 64)
		if err != nil {
			return found
		}
		return m[1] + strconv.FormatInt(r.renumber(uid, n), 10)
	})
}

// renumberPublisher counts the pods that published a task's work and that existed, as attempts are.
func (r *run) renumberPublisher(t *v1alpha1.Task) {
	if p := t.Status.Publish; p != nil {
		p.Number = r.kubelet.published(p.Number, func(number int64) string { return resources.PublisherName(t.Name, number) })
	}
}

// renumberBranches does the same for the pods that pushed a Checkpoint's branches.
func (r *run) renumberBranches(c *v1alpha1.Checkpoint) {
	pushes := int64(0)
	for i := range c.Status.Branches {
		name := func(number int64) string {
			return resources.BranchPublisherName(c, c.Status.Branches[i].Name, number)
		}
		pushes += r.kubelet.published(c.Status.BranchPushes, name)
		if o := c.Status.Branches[i].Origin; o != nil {
			o.Number = r.kubelet.published(o.Number, name)
		}
	}
	c.Status.BranchPushes = pushes
}

// withoutActiveTime takes the time out of a task's status for which its agent has run. It is that of
// all its attempts, each counted once.
func (r *run) withoutActiveTime(t *v1alpha1.Task) {
	r.Helper()
	var active time.Duration
	for _, a := range t.Status.Attempts {
		if a.Outcome != "" && a.AgentStartTime != nil {
			active += a.AgentSeenTime.Sub(a.AgentStartTime.Time)
		}
	}
	r.Expect(t.Status.ActiveSeconds).To(BeEquivalentTo(active/time.Second), "the time for which the agent of task %s has run", t.Name)
	t.Status.ActiveSeconds = 0
}

// withoutSpent takes the attempts without a pod out of a task's status. Its history is compared
// as rows.
func (r *run) withoutSpent(t *v1alpha1.Task) {
	r.Helper()
	uid, trigger := string(t.UID), v1alpha1.AttemptTrigger("")
	var attempts []v1alpha1.Attempt
	lost := int64(0)
	for _, a := range t.Status.Attempts {
		if !r.kubelet.hadPod(uid, a.Number) {
			r.Expect(a.PodUID).To(BeEmpty(), "attempt %d of task %s, which had no pod", a.Number, t.Name)
			r.Expect(a.Outcome).To(Equal(v1alpha1.AttemptPodLost), "attempt %d of task %s, which had no pod", a.Number, t.Name)
			if trigger == "" {
				trigger = a.Trigger
			}
			lost += entriesOfLost(a)
			continue
		}
		if trigger != "" {
			a.Trigger, trigger = trigger, ""
		}
		a.Number = r.renumber(uid, a.Number)
		a.PodName = resources.PodName(t.Name, a.Number)
		attempts = append(attempts, a)
	}
	t.Status.Attempts, t.Status.History = attempts, nil
	t.Status.HistorySequence -= lost
	t.Status.RecordedSequence -= lost
}

// entriesOfLost is the number of transitions that an attempt without a pod adds: it was lost, and
// the next one followed. What rewinds has an entry only once it is done.
func entriesOfLost(a v1alpha1.Attempt) int64 {
	if a.Trigger == v1alpha1.AttemptRewind {
		return 1
	}
	return 2
}

// tables are the queries of the rows that count, each with the task's UID and the attempt first.
var tables = map[string]string{
	"task": `SELECT uid, attempt, name, last_sequence, checkpoint_count, latest_checkpoint, snapshot_count, lost_records, problem_reason
		FROM tasks ORDER BY name, created_at`,
	"summary":   `SELECT uid, 0, name, state, preview, messages, checkpoints FROM task_summaries ORDER BY name, created_at`,
	"adoption":  `SELECT uid, 0, former_uid FROM adoptions ORDER BY adopted_at`,
	"operation": `SELECT task_uid, attempt, operation_id, checkpoint, reason, branch, position, refused, details::text FROM operations ORDER BY created_at, ordinal`,
	"checkpoint": `SELECT task_uid, attempt, task_name, number, trigger, durable, lost, requested_by_name, branch_number, position
		FROM recorded_checkpoints ORDER BY task_name, task_uid, number`,
	"message": `SELECT b.task_uid, e.attempt, t.name, b.number, e.position, m.role, m.body
		FROM entries e JOIN branches b ON b.id = e.branch_id JOIN tasks t ON t.uid = b.task_uid JOIN messages m ON m.id = e.message_id
		ORDER BY t.name, b.number, e.position`,
	"checkpoint name": `SELECT t.uid, 0, n.name, n.number FROM checkpoint_names n JOIN tasks t ON t.id = n.task_id ORDER BY t.name, t.created_at, n.name`,
	"spec":            `SELECT uid, 0, spec FROM task_specs`,
	"awaited source":  `SELECT task_uid, 0 FROM awaited_sources`,
	"deleted task":    `SELECT uid, 0 FROM deleted_tasks`,
	"tool call": `SELECT t.uid, c.attempt, c.tool, c.refused, c.answered IS NOT NULL, c.delivered IS NOT NULL, c.answer, convert_from(c.data, 'UTF8')
		FROM tool_calls c JOIN tasks t ON t.id = c.task_id ORDER BY c.ordinal`,
}

// describeRows writes the rows of the database.
func (r *run) describeRows(b *strings.Builder) {
	r.Helper()
	db, err := pgx.Connect(r.ctx, r.dsn)
	r.Expect(err).NotTo(HaveOccurred())
	defer db.Close(r.ctx)
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		for _, row := range r.rows(db, tables[table]) {
			uid, attempt := fmt.Sprint(row[0]), int64(0)
			_, err := fmt.Sscan(fmt.Sprint(row[1]), &attempt)
			r.Expect(err).NotTo(HaveOccurred())
			fmt.Fprintf(b, "row %s %s: %v\n", table, uid, append([]any{r.renumber(uid, attempt)}, row[2:]...))
		}
	}
	r.describeTransitions(b, db)
}

// describeTransitions writes the timeline: by task and by who wrote it, in order.
func (r *run) describeTransitions(b *strings.Builder, db *pgx.Conn) {
	r.Helper()
	for _, row := range r.rows(db, `SELECT task_uid, attempt, task_name, type, reason, actor, message, checkpoint FROM events ORDER BY task_name, type, time`) {
		uid, attempt := row[0].(string), row[1].(int64)
		if row[4] == v1alpha1.EventPodLost && !r.kubelet.hadPod(uid, attempt) || row[4] == v1alpha1.EventTaskRetried && !r.kubelet.hadPod(uid, attempt-1) {
			continue
		}
		fmt.Fprintf(b, "event %s: %s\n", uid, r.renumbered(uid, fmt.Sprintf("attempt %d %v", attempt, row[2:])))
	}
}

// rows returns the rows of a query.
func (r *run) rows(db *pgx.Conn, query string) [][]any {
	r.Helper()
	rows, err := db.Query(r.ctx, query)
	r.Expect(err).NotTo(HaveOccurred(), query)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	r.Expect(err).NotTo(HaveOccurred(), query)
	return all
}

var (
	times = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z`)
	// digests are over messages and their times.
	digests = regexp.MustCompile(`digest: [0-9a-f]{64}`)
	// seconds are for how long an agent has run.
	seconds = regexp.MustCompile(`has run for \d+ seconds`)
	// requests are digests of what is asked for a branch, its id included.
	requests = regexp.MustCompile(`request: [0-9a-f]{32}`)
	// members are the ends of the names of Checkpoints that are part of a set, which have the set's UID.
	members = regexp.MustCompile(`-set-[0-9a-f]{12}`)
	// calls are the ids of calls of tools.
	calls = regexp.MustCompile(`\b[a-z2-7]{26}\b`)
	// starts are in the names of the Checkpoints with which phases begin, and follow from calls.
	starts = regexp.MustCompile(`-phase-[0-9a-f]{10}`)
	uuids  = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
)

// plain takes out what differs between any two runs.
func (r *run) plain(text string) string {
	for uid, name := range r.uids {
		text = strings.ReplaceAll(text, uid, "UID of "+name)
	}
	text = strings.ReplaceAll(text, r.namespace, "NAMESPACE")
	text = digests.ReplaceAllString(text, "digest: DIGEST")
	text = requests.ReplaceAllString(text, "request: REQUEST")
	text = members.ReplaceAllString(text, "-set-UID")
	text = starts.ReplaceAllString(text, "-phase-START")
	text = calls.ReplaceAllString(text, "CALL")
	text = seconds.ReplaceAllString(text, "has run for SECONDS")
	return uuids.ReplaceAllString(times.ReplaceAllString(text, "TIME"), "UID")
}
