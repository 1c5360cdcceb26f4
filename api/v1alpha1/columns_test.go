package v1alpha1_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// `kubectl get` shows why something is not ready, not only that it is not.
func TestTheListSaysWhySomethingIsNotReady(t *testing.T) {
	g := gomega.NewWithT(t)
	nobody := v1alpha1.NameReference{Name: "no-task"}
	meta := metav1.ObjectMeta{Namespace: "default", Name: "of-nobody"}
	c := &v1alpha1.Checkpoint{ObjectMeta: meta, Spec: v1alpha1.CheckpointSpec{TaskRef: nobody}}
	f := &v1alpha1.Fork{ObjectMeta: meta, Spec: v1alpha1.ForkSpec{SourceRef: nobody, Variants: []v1alpha1.ForkVariant{{Name: "a"}}}}
	s := &v1alpha1.ConversationSnapshot{ObjectMeta: meta, Spec: v1alpha1.ConversationSnapshotSpec{TaskRef: nobody}}
	because := func(condition, reason string) []metav1.Condition {
		return []metav1.Condition{{Type: condition, Status: metav1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.Now()}}
	}
	for plural, is := range map[string]struct {
		object client.Object
		set    func()
		reason string
	}{
		"checkpoints": {c, func() { c.Status.Conditions = because(v1alpha1.CheckpointReady, v1alpha1.ReasonTaskNotFound) }, v1alpha1.ReasonTaskNotFound},
		"forks":       {f, func() { f.Status.Conditions = because(v1alpha1.ForkComplete, v1alpha1.ReasonSourceNotFound) }, v1alpha1.ReasonSourceNotFound},
		"conversationsnapshots": {s, func() { s.Status.Conditions = because(v1alpha1.SnapshotReady, v1alpha1.ReasonTaskNotFound) },
			v1alpha1.ReasonTaskNotFound},
	} {
		g.Expect(server.Client.Create(t.Context(), is.object)).To(gomega.Succeed())
		t.Cleanup(func() { _ = server.Client.Delete(context.Background(), is.object) })
		is.set()
		g.Expect(server.Client.Status().Update(t.Context(), is.object)).To(gomega.Succeed())
		table := tableOf(t, plural, "of-nobody")
		i := slices.IndexFunc(table.ColumnDefinitions, func(d metav1.TableColumnDefinition) bool { return d.Name == "Reason" && d.Priority == 0 })
		g.Expect(i).To(gomega.BeNumerically(">=", 0), plural)
		g.Expect(table.Rows[0].Cells[i]).To(gomega.Equal(is.reason), plural)
	}
}

// Ready stays True for a checkpoint that was taken and is now lost.
func TestTheWideListSaysWhyACheckpointIsNotDurable(t *testing.T) {
	g := gomega.NewWithT(t)
	c := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lost"},
		Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "no-task"}}}
	g.Expect(server.Client.Create(t.Context(), c)).To(gomega.Succeed())
	t.Cleanup(func() { _ = server.Client.Delete(context.Background(), c) })
	c.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTaken, LastTransitionTime: metav1.Now()},
		{Type: v1alpha1.CheckpointDurable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCheckpointLost, LastTransitionTime: metav1.Now()},
	}
	g.Expect(server.Client.Status().Update(t.Context(), c)).To(gomega.Succeed())
	table := tableOf(t, "checkpoints", "lost")
	i := slices.IndexFunc(table.ColumnDefinitions, func(d metav1.TableColumnDefinition) bool { return d.Name == "Durable-Reason" && d.Priority == 1 })
	g.Expect(i).To(gomega.BeNumerically(">=", 0))
	g.Expect(table.Rows[0].Cells[i]).To(gomega.Equal(v1alpha1.ReasonCheckpointLost))
}

// The number is what a person acknowledges.
func TestTheWideListOfTasksSaysHowManyRecordsAreLost(t *testing.T) {
	g := gomega.NewWithT(t)
	task := created(t, builders.Task("lost-some"))
	t.Cleanup(func() { _ = server.Client.Delete(context.Background(), task) })
	task.Status.LostRecords = 29
	g.Expect(server.Client.Status().Update(t.Context(), task)).To(gomega.Succeed())
	table := tableOf(t, "tasks", "lost-some")
	i := slices.IndexFunc(table.ColumnDefinitions, func(d metav1.TableColumnDefinition) bool { return d.Name == "Lost-Records" && d.Priority == 1 })
	g.Expect(i).To(gomega.BeNumerically(">=", 0))
	g.Expect(table.Rows[0].Cells[i]).To(gomega.BeEquivalentTo(29))
}

// tableOf returns the table that `kubectl get` prints.
func tableOf(t *testing.T, plural, name string) (table metav1.Table) {
	t.Helper()
	g := gomega.NewWithT(t)
	c, err := rest.HTTPClientFor(server.Config)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		strings.TrimSuffix(server.Config.Host, "/")+"/apis/clew.dev/v1alpha1/namespaces/default/"+plural+"/"+name, nil)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	answer, err := c.Do(request)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	defer answer.Body.Close()
	g.Expect(json.NewDecoder(answer.Body).Decode(&table)).To(gomega.Succeed())
	g.Expect(table.Rows).To(gomega.HaveLen(1), plural)
	return table
}
