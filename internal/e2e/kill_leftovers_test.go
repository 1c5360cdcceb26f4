//go:build e2e && soak

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// expectNothingLeft checks that attempts and checkpoints are numbered once and every checkpoint
// is durable, deletes all tasks and their histories, and waits until nothing of them is left in
// the cluster, the gitstore and Postgres.
func (w *world) expectNothingLeft(ctx context.Context) {
	GinkgoHelper()
	tasks := &clewv1.TaskList{}
	Expect(w.kube.List(ctx, tasks, client.InNamespace(w.namespace))).To(Succeed())
	for _, t := range tasks.Items {
		if t.DeletionTimestamp != nil {
			continue // its checkpoints go with it
		}
		numbers := map[int64]int{}
		for _, a := range t.Status.Attempts {
			numbers[a.Number]++
		}
		for number, times := range numbers {
			Expect(times).To(Equal(1), "attempt %d of task %s", number, t.Name)
		}
		for _, c := range w.checkpoints(ctx, t.Name) {
			w.untilDurable(ctx, c.Name)
		}
	}
	Expect(w.kube.DeleteAllOf(ctx, &clewv1.Task{}, client.InNamespace(w.namespace))).To(Succeed())
	w.deleteApplied(ctx)
	left := func(list client.ObjectList) {
		GinkgoHelper()
		Eventually(ctx, func() (int, error) {
			err := w.kube.List(ctx, list, client.InNamespace(w.namespace))
			return meta.LenList(list), err
		}).WithTimeout(3*time.Minute).Should(BeZero(), "%T", list)
	}
	left(&clewv1.TaskList{})
	left(&corev1.PodList{})
	left(&corev1.PersistentVolumeClaimList{})
	left(&clewv1.CheckpointList{})
	w.expectStoresEmptied(ctx)
}

// deleteApplied deletes the Checkpoints that the spec applied: they are their user's, and stay when
// the task goes. Those that Clew made go with the task.
func (w *world) deleteApplied(ctx context.Context) {
	GinkgoHelper()
	all := &clewv1.CheckpointList{}
	Expect(w.kube.List(ctx, all, client.InNamespace(w.namespace))).To(Succeed())
	for i := range all.Items {
		if len(all.Items[i].OwnerReferences) == 0 {
			Expect(client.IgnoreNotFound(w.kube.Delete(ctx, &all.Items[i]))).To(Succeed())
		}
	}
}

// expectStoresEmptied deletes the histories of all tasks of the namespace, and waits until no ref
// of the gitstore and no row of Postgres is left of them.
func (w *world) expectStoresEmptied(ctx context.Context) {
	GinkgoHelper()
	ids := w.storedIDs(ctx)
	for _, t := range w.histories(ctx) {
		w.plugin(ctx, "task", "delete-history", t.Name, "--uid", string(t.UID), "--yes")
	}
	Expect(w.histories(ctx)).To(BeEmpty(), "histories")
	repositories := "/var/lib/clew-gitstore/namespaces/" + w.namespace + "/*.git"
	Expect(w.inGitstore(ctx, "for r in "+repositories+"; do git -c safe.directory='*' --git-dir $r for-each-ref; done")).To(BeEmpty(), "refs")
	Eventually(ctx, func() string { return w.inPostgres(ctx, rowsLeft(w.namespace, ids)) }).WithTimeout(time.Minute).
		Should(BeEmpty(), "rows, by table and column")
}

// histories returns the tasks of the namespace whose history is kept.
func (w *world) histories(ctx context.Context) (all []historyv1.TaskHistory) {
	GinkgoHelper()
	for next := ""; ; {
		body, err := w.rawQuery(ctx, fmt.Sprintf("/apis/history.clew.dev/v1alpha1/namespaces/%s/taskhistories?limit=100&continue=%s", w.namespace, next))
		Expect(err).NotTo(HaveOccurred(), "list the histories")
		var page historyv1.TaskHistoryList
		Expect(json.Unmarshal(body, &page)).To(Succeed())
		all = append(all, page.Items...)
		if next = page.Continue; next == "" {
			return all
		}
	}
}

// inPostgres returns the lines of a query's answer.
func (w *world) inPostgres(ctx context.Context, query string) string {
	GinkgoHelper()
	out, err := w.kubectlIn(ctx, []byte(query), "--namespace", systemNamespace, "exec", "-i", "statefulset/clew-postgres", "--",
		"psql", "--host", "/run/clew", "--username", "clew", "--no-align", "--tuples-only", "--quiet", "--set", "ON_ERROR_STOP=1", "clew")
	Expect(err).NotTo(HaveOccurred(), "%s\n%s", query, out)
	return strings.TrimSpace(out)
}

// idColumns are the columns by which rows belong to a namespace's tasks, and the queries of
// their values. Columns of the same meaning have the same name in every table.
var idColumns = map[string]string{
	"uid":        "SELECT uid FROM tasks WHERE namespace = %[1]s UNION SELECT uid FROM task_summaries WHERE namespace = %[1]s",
	"task_id":    "SELECT id::text FROM tasks WHERE namespace = %[1]s",
	"branch_id":  "SELECT b.id::text FROM branches b JOIN tasks t ON t.uid = b.task_uid WHERE t.namespace = %[1]s",
	"message_id": "SELECT id::text FROM messages WHERE namespace = %[1]s",
	"piece_id":   "SELECT id::text FROM pieces WHERE namespace = %[1]s",
}

// storedIDs returns the ids of what Postgres stores for the namespace, as arrays, by column.
func (w *world) storedIDs(ctx context.Context) map[string]string {
	GinkgoHelper()
	ids := map[string]string{}
	for column, query := range idColumns {
		query = fmt.Sprintf(query, "'"+w.namespace+"'")
		ids[column] = w.inPostgres(ctx, "SELECT coalesce(array_agg(id), '{}') FROM ("+query+") AS of (id)")
	}
	Expect(ids["uid"]).NotTo(Equal("{}"), "the namespace has tasks")
	return ids
}

// rowsLeft is a query of the tables with rows of a namespace or with the ids, whatever tables there
// are. That a task's history was deleted, and who did it, is kept by design, and so is what all of a contract
// and of a namespace have spent.
func rowsLeft(namespace string, ids map[string]string) string {
	return fmt.Sprintf(`WITH of (col, ids) AS (VALUES ('namespace', '{%s}'::text[]), ('uid', '%[2]s'), ('task_uid', '%[2]s'), ('former_uid', '%[2]s'),
	('task_id', '%[3]s'), ('branch_id', '%[4]s'), ('message_id', '%[5]s'), ('piece_id', '%[6]s')),
found AS (SELECT relname, col, (xpath('//n/text()', query_to_xml(format('SELECT count(*) AS n FROM %%I r WHERE %%I::text = ANY (%%L) AND to_jsonb(r) ->> ''reason'' IS DISTINCT FROM ''HistoryDeleted'' AND NOT to_jsonb(r) @> ANY (ARRAY[''{"scope":"contract"}'', ''{"scope":"month"}'']::jsonb[])', relname, col, ids),
	false, true, '')))[1]::text::bigint AS n
	FROM of JOIN pg_attribute ON attname = col AND attnum > 0 JOIN pg_class c ON c.oid = attrelid
	WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'deleted_tasks')
SELECT relname, col, n FROM found WHERE n > 0 ORDER BY 1, 2`,
		namespace, ids["uid"], ids["task_id"], ids["branch_id"], ids["message_id"], ids["piece_id"])
}
