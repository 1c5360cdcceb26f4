package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

const (
	robot   = "system:serviceaccount:default:robot"
	manager = "system:serviceaccount:clew-system:clew-manager"
)

// people are clients of users who may do everything with Clew's objects: ann has a client
// certificate, the robot the token of a service account, and carol and the manager are
// impersonated.
type people struct {
	ann, robot, carol, manager client.Client
}

func newPeople(t *testing.T) people {
	t.Helper()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "clew-user-"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"*"}},
			{APIGroups: []string{"history.clew.dev"}, Resources: []string{"tasks/conversation"}, Verbs: []string{"get"}},
		},
	}
	must(t, server.Client.Create(t.Context(), role))
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "clew-user-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	}
	for _, name := range []string{"ann", robot, "carol", manager} {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name})
	}
	must(t, server.Client.Create(t.Context(), binding))

	kubeconfig, err := server.Kubeconfig("ann")
	must(t, err)
	certificate, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	must(t, err)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot"}}
	must(t, client.IgnoreAlreadyExists(server.Client.Create(t.Context(), account)))
	request := &authenticationv1.TokenRequest{}
	must(t, server.Client.SubResource("token").Create(t.Context(), account, request))
	token := rest.AnonymousClientConfig(server.Config)
	token.BearerToken = request.Status.Token
	return people{
		ann: clientOf(t, certificate), robot: clientOf(t, token),
		carol: clientOf(t, impersonating("carol")), manager: clientOf(t, impersonating(manager)),
	}
}

func impersonating(user string) *rest.Config {
	config := rest.CopyConfig(server.Config)
	config.Impersonate.UserName = user
	return config
}

func clientOf(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	config.QPS = -1
	c, err := client.New(config, client.Options{Scheme: server.Scheme})
	must(t, err)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// manifest returns a Task as a person writes it, with these fields in its spec.
func manifest(name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Task",
		"metadata": map[string]any{"namespace": "default", "name": name},
		"spec": map[string]any{
			"prompt": "Tidy up.",
			"template": map[string]any{"spec": map[string]any{"containers": []any{
				map[string]any{"name": "agent", "image": "i", "command": []any{"/bin/agent"}},
			}}},
		},
	}}
	for key, value := range spec {
		u.Object["spec"].(map[string]any)[key] = value
	}
	return u
}

func rewindSpec(id string) map[string]any {
	return map[string]any{"id": id, "to": map[string]any{"checkpointRef": map[string]any{"name": "c"}}}
}

// serverSide applies a manifest as kubectl apply --server-side does.
func serverSide(t *testing.T, c client.Client, u *unstructured.Unstructured, options ...client.ApplyOption) *unstructured.Unstructured {
	t.Helper()
	applied := u.DeepCopy()
	must(t, c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), append(options, client.FieldOwner("gitops"))...))
	return applied
}

// clientSide applies a manifest as kubectl apply does: by a patch computed from the last
// applied, the live and the new object.
func clientSide(t *testing.T, c client.Client, u *unstructured.Unstructured, options ...client.PatchOption) *unstructured.Unstructured {
	t.Helper()
	wanted := u.DeepCopy()
	text, err := json.Marshal(u)
	must(t, err)
	wanted.SetAnnotations(map[string]string{corev1.LastAppliedConfigAnnotation: string(text)})
	modified, err := json.Marshal(wanted)
	must(t, err)
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(u.GroupVersionKind())
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(u), live); err != nil {
		must(t, client.IgnoreNotFound(err))
		must(t, c.Create(t.Context(), wanted, client.FieldOwner("kubectl-client-side-apply")))
		return wanted
	}
	current, err := json.Marshal(live)
	must(t, err)
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch([]byte(live.GetAnnotations()[corev1.LastAppliedConfigAnnotation]), modified, current)
	must(t, err)
	if string(patch) == "{}" && len(options) == 0 {
		return live
	}
	must(t, c.Patch(t.Context(), live, client.RawPatch(types.MergePatchType, patch), append(options, client.FieldOwner("kubectl-client-side-apply"))...))
	return live
}

func requesters(t *testing.T, name string) v1alpha1.TaskRequesters {
	t.Helper()
	task := live(t, name)
	if task.Spec.RequestedBy == nil {
		return v1alpha1.TaskRequesters{}
	}
	return *task.Spec.RequestedBy
}

func live(t *testing.T, name string) *v1alpha1.Task {
	t.Helper()
	task := &v1alpha1.Task{}
	must(t, server.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, task))
	return task
}

func wantRequesters(t *testing.T, name string, want v1alpha1.TaskRequesters) {
	t.Helper()
	if got := requesters(t, name); got != want {
		t.Errorf("spec.requestedBy is %+v, want %+v", got, want)
	}
}

func TestTheRequesterIsTheAuthenticatedUser(t *testing.T) {
	p := newPeople(t)
	serverSide(t, p.ann, manifest("asked", nil))
	wantRequesters(t, "asked", v1alpha1.TaskRequesters{Created: "ann", OperatingMode: "ann"})

	serverSide(t, p.robot, manifest("asked", map[string]any{"operatingMode": "Suspended", "rewind": rewindSpec("r1")}))
	wantRequesters(t, "asked", v1alpha1.TaskRequesters{Created: "ann", OperatingMode: robot, Rewind: robot})

	task := live(t, "asked")
	must(t, p.carol.Patch(t.Context(), task, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"rewind":{"id":"r2"}}}`))))
	wantRequesters(t, "asked", v1alpha1.TaskRequesters{Created: "ann", OperatingMode: robot, Rewind: "carol"})

	task = live(t, "asked")
	builders.Rewind("r3", "c")(task)
	must(t, p.ann.Update(t.Context(), task))
	wantRequesters(t, "asked", v1alpha1.TaskRequesters{Created: "ann", OperatingMode: robot, Rewind: "ann"})

	task.Spec.Rewind = nil
	must(t, p.carol.Update(t.Context(), task))
	wantRequesters(t, "asked", v1alpha1.TaskRequesters{Created: "ann", OperatingMode: robot})

	task = live(t, "asked")
	task.Status.LostRecords = 2
	must(t, server.Client.Status().Update(t.Context(), task))
	for who, lost := range map[client.Client]string{p.carol: "1", p.robot: "2"} {
		for range 2 { // applied again, it is still by the same
			must(t, who.Patch(t.Context(), live(t, "asked"), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"acknowledge":{"lostRecords":`+lost+`}}}`))))
			must(t, p.ann.Patch(t.Context(), live(t, "asked"), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"acknowledge":{"lostRecords":`+lost+`}}}`))))
		}
		want := v1alpha1.TaskRequesters{Created: "ann", OperatingMode: robot, Acknowledge: "carol"}
		if who == p.robot {
			want.Acknowledge = robot
		}
		wantRequesters(t, "asked", want)
	}
}

func TestNobodyCanNameAnotherRequester(t *testing.T) {
	p := newPeople(t)
	forged := map[string]any{"created": "eve", "operatingMode": "eve", "rewind": "eve", "resume": "eve"}
	serverSide(t, p.ann, manifest("forged", map[string]any{"requestedBy": forged}))
	wantRequesters(t, "forged", v1alpha1.TaskRequesters{Created: "ann", OperatingMode: "ann"})

	serverSide(t, p.carol, manifest("forged", map[string]any{"requestedBy": forged, "rewind": rewindSpec("r1")}), client.ForceOwnership)
	want := v1alpha1.TaskRequesters{Created: "ann", OperatingMode: "ann", Rewind: "carol"}
	wantRequesters(t, "forged", want)
	for kind, patch := range map[types.PatchType]string{
		types.MergePatchType: `{"spec":{"requestedBy":{"rewind":"eve","created":null}}}`,
		types.JSONPatchType:  `[{"op":"remove","path":"/spec/requestedBy"}]`,
	} {
		must(t, p.robot.Patch(t.Context(), live(t, "forged"), client.RawPatch(kind, []byte(patch))))
		wantRequesters(t, "forged", want)
	}
	replaced := live(t, "forged")
	replaced.Spec.RequestedBy = nil
	must(t, p.robot.Update(t.Context(), replaced))
	wantRequesters(t, "forged", want)
	// What was sent once, and so is owned by a field manager, does not block later updates.
	serverSide(t, p.ann, manifest("forged", map[string]any{"rewind": rewindSpec("r1")}))
	wantRequesters(t, "forged", want)
	serverSide(t, p.robot, manifest("forged", map[string]any{"rewind": rewindSpec("r2")}))
	want.Rewind = robot
	wantRequesters(t, "forged", want)
}

func TestApplyingAManifestAgainChangesNothing(t *testing.T) {
	p := newPeople(t)
	for name, apply := range map[string]func(c client.Client, u *unstructured.Unstructured) *unstructured.Unstructured{
		"server-side": func(c client.Client, u *unstructured.Unstructured) *unstructured.Unstructured {
			return serverSide(t, c, u)
		},
		"forced": func(c client.Client, u *unstructured.Unstructured) *unstructured.Unstructured {
			return serverSide(t, c, u, client.ForceOwnership)
		},
		"client-side": func(c client.Client, u *unstructured.Unstructured) *unstructured.Unstructured {
			return clientSide(t, c, u)
		},
	} {
		t.Run(name, func(t *testing.T) {
			name := "again-" + name
			apply(p.ann, manifest(name, nil))
			wanted := manifest(name, map[string]any{"rewind": rewindSpec("r1"), "operatingMode": "Suspended"})
			apply(p.robot, wanted)
			before := live(t, name)
			for n := range 100 {
				c := []client.Client{p.ann, p.robot, p.carol}[n%3]
				apply(c, wanted)
			}
			after := live(t, name)
			if !reflect.DeepEqual(before, after) {
				t.Errorf("100 applies changed the object from\n%+v\nto\n%+v", before, after)
			}
			wantRequesters(t, name, v1alpha1.TaskRequesters{Created: "ann", OperatingMode: robot, Rewind: robot})
		})
	}
}

func TestADryRunShowsNoDifference(t *testing.T) {
	p := newPeople(t)
	wanted := manifest("diffed", map[string]any{"operatingMode": "Suspended"})
	clientSide(t, p.ann, wanted)
	before := live(t, "diffed")
	shown := clientSide(t, p.carol, wanted, client.DryRunAll)
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(wanted.GroupVersionKind())
	must(t, server.Client.Get(t.Context(), client.ObjectKeyFromObject(wanted), stored))
	shown.SetManagedFields(nil)
	stored.SetManagedFields(nil)
	if !reflect.DeepEqual(shown.Object, stored.Object) {
		t.Errorf("kubectl diff would show\n%v\ninstead of\n%v", shown.Object, stored.Object)
	}
	if after := live(t, "diffed"); !reflect.DeepEqual(before, after) {
		t.Error("a dry run changed the Task")
	}
}

func TestTheRequestersOfCheckpointsAndForks(t *testing.T) {
	p := newPeople(t)
	checkpoint := &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "asked"},
		Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "t"}, RequestedBy: "eve"},
	}
	must(t, p.carol.Create(t.Context(), checkpoint))
	if checkpoint.Spec.RequestedBy != "carol" {
		t.Errorf("the Checkpoint was requested by %q", checkpoint.Spec.RequestedBy)
	}
	checkpoint.Spec.RequestedBy, checkpoint.Labels = "", map[string]string{"a": "b"}
	must(t, p.ann.Update(t.Context(), checkpoint))
	if checkpoint.Spec.RequestedBy != "carol" {
		t.Errorf("after a replace, the Checkpoint was requested by %q", checkpoint.Spec.RequestedBy)
	}
	made := checkpoint.DeepCopy()
	made.ObjectMeta, made.Spec.RequestedBy = metav1.ObjectMeta{Namespace: "default", Name: "made"}, ""
	must(t, p.manager.Create(t.Context(), made))
	made.Spec.RequestedBy = "eve"
	must(t, p.ann.Update(t.Context(), made))
	if made.Spec.RequestedBy != "" {
		t.Errorf("the manager's Checkpoint was requested by %q", made.Spec.RequestedBy)
	}
	fork := &v1alpha1.Fork{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "asked"},
		Spec:       v1alpha1.ForkSpec{SourceRef: v1alpha1.NameReference{Name: "t"}, Variants: []v1alpha1.ForkVariant{{Name: "v"}}},
	}
	must(t, p.robot.Create(t.Context(), fork))
	if fork.Spec.RequestedBy != robot {
		t.Errorf("the Fork was requested by %q", fork.Spec.RequestedBy)
	}
}

func TestWhoChangedPublishIsWhoApproved(t *testing.T) {
	p := newPeople(t)
	publish := func(commit string) map[string]any {
		how := map[string]any{"branch": "clew/work"}
		if commit != "" {
			how["approvedCommit"] = commit
		}
		return map[string]any{"repository": map[string]any{"url": "https://example.com/r.git"}, "publish": how}
	}
	serverSide(t, p.ann, manifest("publishes", publish("")))
	want := v1alpha1.TaskRequesters{Created: "ann", OperatingMode: "ann", Publish: "ann"}
	wantRequesters(t, "publishes", want)
	serverSide(t, p.carol, manifest("publishes", publish("")))
	wantRequesters(t, "publishes", want)
	want.Publish = "carol"
	for _, c := range []client.Client{p.carol, p.robot} { // applied again, it is still by the same
		serverSide(t, c, manifest("publishes", publish(strings.Repeat("c0", 20))))
		wantRequesters(t, "publishes", want)
	}
}

// wantBranches fails unless the branches of a Checkpoint were asked for by these users, and were
// changed by that one last.
func wantBranches(t *testing.T, name, changedBy string, want map[string]string) {
	t.Helper()
	c := &v1alpha1.Checkpoint{}
	must(t, server.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, c))
	got := map[string]string{}
	for _, b := range c.Spec.Branches {
		got[b.Name] = b.RequestedBy
	}
	if !reflect.DeepEqual(got, want) || c.Spec.BranchesChangedBy != changedBy {
		t.Errorf("the branches are by %v, and changed by %q; want %v, %q", got, c.Spec.BranchesChangedBy, want, changedBy)
	}
}

func TestTheRequestersOfBranches(t *testing.T) {
	p := newPeople(t)
	apply := func(c client.Client, branches ...map[string]any) {
		t.Helper()
		list := []any{}
		for _, b := range branches {
			list = append(list, b)
		}
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Checkpoint", "metadata": map[string]any{"namespace": "default", "name": "branched"},
			"spec": map[string]any{"taskRef": map[string]any{"name": "t"}, "branches": list},
		}}
		serverSide(t, c, u, client.ForceOwnership)
	}
	a, b := map[string]any{"name": "a"}, map[string]any{"name": "b", "push": "Origin", "requestedBy": "eve"}
	apply(p.ann, a)
	wantBranches(t, "branched", "ann", map[string]string{"a": "ann"})
	apply(p.carol, b, a)
	wantBranches(t, "branched", "carol", map[string]string{"a": "ann", "b": "carol"})
	apply(p.robot, a, b)
	wantBranches(t, "branched", "carol", map[string]string{"a": "ann", "b": "carol"})
	b["approvedCommit"] = strings.Repeat("c0", 20)
	apply(p.robot, a, b)
	wantBranches(t, "branched", robot, map[string]string{"a": "ann", "b": robot})
	apply(p.ann, b)
	wantBranches(t, "branched", "ann", map[string]string{"b": robot})
	b["checkout"] = "Never"
	apply(p.carol, b)
	wantBranches(t, "branched", "ann", map[string]string{"b": robot})
	b["checkout"] = "NextStart"
	apply(p.carol, b)
	wantBranches(t, "branched", "carol", map[string]string{"b": "carol"})
	b["checkout"] = "Never"
	apply(p.robot, b)
	wantBranches(t, "branched", robot, map[string]string{"b": robot})
	apply(p.ann)
	apply(p.robot, b)
	apply(p.ann, a, b)
	apply(p.ann, b)

	c := &v1alpha1.Checkpoint{}
	must(t, server.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "branched"}, c))
	c.Spec.BranchesChangedBy, c.Spec.Branches[0].RequestedBy, c.Spec.Retention = "eve", "eve", v1alpha1.CheckpointKept
	must(t, p.carol.Update(t.Context(), c))
	wantBranches(t, "branched", "ann", map[string]string{"b": robot})
}

func TestTheManagerNamesTheRequesterOfAForksTask(t *testing.T) {
	p := newPeople(t)
	task := builders.Task("forked")
	task.Spec.RequestedBy = &v1alpha1.TaskRequesters{Created: "ann", OperatingMode: "ann"}
	must(t, p.manager.Create(t.Context(), task))
	task.Finalizers = []string{"example.com/keep"}
	must(t, p.manager.Update(t.Context(), task))
	wantRequesters(t, "forked", v1alpha1.TaskRequesters{Created: "ann", OperatingMode: "ann"})
	task = live(t, "forked")
	task.Finalizers = nil
	must(t, p.manager.Update(t.Context(), task))
}

// TestTheManagerNamesTheTaskWhoseAgentHasAsked: of what the manager changes, and nobody else can.
func TestTheManagerNamesTheTaskWhoseAgentHasAsked(t *testing.T) {
	p := newPeople(t)
	must(t, p.ann.Create(t.Context(), builders.Task("steered")))
	task := live(t, "steered")
	task.Spec.OperatingMode = v1alpha1.OperatingModeSuspended
	task.Spec.RequestedBy.OperatingMode, task.Spec.RequestedBy.Created = "task:lead", "eve"
	must(t, p.manager.Update(t.Context(), task))
	wantRequesters(t, "steered", v1alpha1.TaskRequesters{Created: "ann", OperatingMode: "task:lead"})
	task = live(t, "steered")
	task.Spec.OperatingMode = v1alpha1.OperatingModeRunning
	task.Spec.RequestedBy.OperatingMode = "task:lead"
	must(t, p.carol.Update(t.Context(), task))
	wantRequesters(t, "steered", v1alpha1.TaskRequesters{Created: "ann", OperatingMode: "carol"})

	fork := &v1alpha1.Fork{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lead-ways"},
		Spec:       v1alpha1.ForkSpec{SourceRef: v1alpha1.NameReference{Name: "t"}, Variants: []v1alpha1.ForkVariant{{Name: "lead-a"}}, RequestedBy: "task:lead"},
	}
	must(t, p.manager.Create(t.Context(), fork))
	if fork.Spec.RequestedBy != "task:lead" {
		t.Errorf("the Fork was requested by %q", fork.Spec.RequestedBy)
	}

	checkpoint := &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "steered-1"},
		Spec:       v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "steered"}},
	}
	must(t, p.manager.Create(t.Context(), checkpoint))
	checkpoint.Spec.Branches = []v1alpha1.CheckpointBranch{{Name: "main", Push: v1alpha1.PushOrigin, RequestedBy: "task:lead"}}
	checkpoint.Spec.BranchesChangedBy = "task:lead"
	must(t, p.manager.Update(t.Context(), checkpoint))
	wantBranches(t, "steered-1", "task:lead", map[string]string{"main": "task:lead"})
	checkpoint.Spec.Branches = append(checkpoint.Spec.Branches, v1alpha1.CheckpointBranch{Name: "other", RequestedBy: "task:lead"})
	must(t, p.carol.Update(t.Context(), checkpoint))
	wantBranches(t, "steered-1", "carol", map[string]string{"main": "task:lead", "other": "carol"})
}

// A copied manifest of a fork's task contains what the manager wrote.
func TestOnlyTheManagerNamesTheForkOfATask(t *testing.T) {
	p := newPeople(t)
	made := func(name, by string) *v1alpha1.Task {
		task := builders.Task(name)
		task.Spec.StartFrom = &v1alpha1.StartFrom{TaskRef: v1alpha1.NameReference{Name: "source"}}
		if by != "" {
			task.Spec.StartFrom.Fork = &v1alpha1.ForkOrigin{Name: by, UID: "uid-of-" + by, FieldManager: "gitops"}
		}
		return task
	}
	must(t, p.ann.Create(t.Context(), made("copied", "fork")))
	if by := live(t, "copied").Spec.StartFrom.Fork; by != nil {
		t.Errorf("the task names the Fork %+v", by)
	}
	noUID := made("no-uid", "fork")
	noUID.Spec.StartFrom.Fork.UID = ""
	expectRefused(t, p.manager.Create(t.Context(), noUID), "spec.startFrom.fork.uid")
	must(t, p.manager.Create(t.Context(), made("made-by-fork", "fork")))
	for _, by := range []string{"", "another"} {
		replaced := made("made-by-fork", by)
		replaced.ResourceVersion = live(t, "made-by-fork").ResourceVersion
		replaced.Spec.OperatingMode = v1alpha1.OperatingModeSuspended
		must(t, p.ann.Update(t.Context(), replaced))
		if by := live(t, "made-by-fork").Spec.StartFrom.Fork; by == nil || *by != *made("", "fork").Spec.StartFrom.Fork {
			t.Errorf("the task names the Fork %+v", by)
		}
	}
}

func TestALongUserNameIsTruncated(t *testing.T) {
	long := strings.Repeat("ü", 300)
	config := impersonating(fmt.Sprint(long))
	config.Impersonate.Groups = []string{"system:masters"}
	must(t, clientOf(t, config).Create(t.Context(), builders.Task("long-name")))
	wantRequesters(t, "long-name", v1alpha1.TaskRequesters{Created: long[:512], OperatingMode: long[:512]})
}
