package historyapi

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
)

// documents registers discovery and OpenAPI, which tell clients and the aggregation layer
// what is served.
func documents(mux *http.ServeMux) {
	group := apiGroup()
	document(mux, "/apis", metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}, Groups: []metav1.APIGroup{group},
	})
	document(mux, groupPath, group)
	document(mux, versionPath, resourceList())
	document(mux, "/openapi/v2", map[string]any{
		"swagger": "2.0", "info": openAPIInfo(), "paths": map[string]any{}, "definitions": map[string]any{},
	})
	document(mux, "/openapi/v3", map[string]any{
		"paths": map[string]any{
			versionPath[1:]: map[string]any{"serverRelativeURL": "/openapi/v3" + versionPath},
		},
	})
	document(mux, "/openapi/v3"+versionPath, openAPI())
}

func document(mux *http.ServeMux, path string, content any) {
	answer := func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, content) }
	mux.HandleFunc("GET "+path, answer)
	mux.HandleFunc("GET "+path+"/{$}", answer)
}

func apiGroup() metav1.APIGroup {
	version := metav1.GroupVersionForDiscovery{
		GroupVersion: historyv1alpha1.Group + "/" + historyv1alpha1.Version, Version: historyv1alpha1.Version,
	}
	return metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"},
		Name:     historyv1alpha1.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
}

// resourceList names tasks only by their subresources, so that "kubectl get tasks" always
// means the tasks of clew.dev. It does not advertise that taskhistories can be deleted:
// deletable resources are deleted with their namespace, which a history is meant to
// outlive, and a history store that is down would block the namespace's deletion.
func resourceList() metav1.APIResourceList {
	return metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"},
		GroupVersion: historyv1alpha1.Group + "/" + historyv1alpha1.Version,
		APIResources: []metav1.APIResource{
			{Name: "tasks/conversation", Namespaced: true, Kind: "ConversationList", Verbs: metav1.Verbs{"get"}},
			{Name: "tasks/timeline", Namespaced: true, Kind: "TimelineEventList", Verbs: metav1.Verbs{"get"}},
			{Name: "tasks/snapshots", Namespaced: true, Kind: "SnapshotList", Verbs: metav1.Verbs{"get"}},
			{Name: "tasks/" + subresourceCheckpoints, Namespaced: true, Kind: "CheckpointList", Verbs: metav1.Verbs{"get"}},
			{Name: "tasks/" + subresourceDiff, Namespaced: true, Kind: "Diff", Verbs: metav1.Verbs{"get"}},
			{Name: resourceTaskHistories, SingularName: "taskhistory", Namespaced: true, Kind: "TaskHistory", Verbs: metav1.Verbs{"create", "get", "list"}},
			{Name: resourceTaskHistories + "/export", Namespaced: true, Kind: "TaskHistory", Verbs: metav1.Verbs{"get"}},
			{Name: "search", SingularName: "search", Namespaced: true, Kind: "SearchResult", Verbs: metav1.Verbs{"list"}},
			{Name: "timelines", SingularName: "timeline", Namespaced: true, Kind: "TimelineEvent", Verbs: metav1.Verbs{"list", "watch"}},
		},
	}
}

func openAPIInfo() map[string]any {
	return map[string]any{"title": "Clew history", "version": historyv1alpha1.Version}
}

func openAPI() map[string]any {
	const namespace = versionPath + "/namespaces/{namespace}"
	const task, histories = namespace + "/tasks/{name}", namespace + "/" + resourceTaskHistories
	get := func(description string, parameters ...string) map[string]any {
		return map[string]any{"get": operation(description, "application/json", parameters...)}
	}
	imported := operation("Import the history of a task from an export, JSON lines.", "application/json", "namespace")
	imported["requestBody"] = map[string]any{"required": true, "content": content(linesType)}
	list := get("The tasks in the history of the namespace.",
		"namespace", "?name", "?state", "?tool", "?minTokens", "?minCost", "?since", "?until", "?sort", "?limit", "?continue")
	list["post"] = imported
	one := get("The history of a task in summary.", "namespace", "name", "?uid")
	one["delete"] = operation("Permanently delete everything stored of a task that no longer exists.", "application/json", "namespace", "name", "?uid", "?dryRun")
	return map[string]any{
		"openapi": "3.0.0",
		"info":    openAPIInfo(),
		"paths": map[string]any{
			task + "/conversation": get("The messages of a task's conversation, oldest first.",
				"namespace", "name", "?limit", "?continue", "?after", "?branch", "?tail", "?uid", "?full"),
			task + "/conversation/position": get("The turn boundary that a rewind to a message or a moment leads to.",
				"namespace", "name", "?message", "?time", "?back", "?uid"),
			task + "/timeline": get("What happened to a task, newest first.",
				"namespace", "name", "?limit", "?continue", "?type", "?since", "?uid"),
			task + "/snapshots": get("The automatic snapshots of a task's conversation, oldest first.",
				"namespace", "name", "?limit", "?continue", "?uid"),
			task + "/" + subresourceCheckpoints: get("The recorded checkpoints of a task, newest first.",
				"namespace", "name", "?limit", "?continue", "?uid"),
			task + "/" + subresourceCheckpoints + "/{number}": get("A recorded checkpoint of a task, with its lists of files.",
				"namespace", "name", "number", "?uid"),
			task + "/" + subresourceCheckpoints + "/{number}/verification": get("Whether a checkpoint is as it was stored, which is verified now, or was since the given time.",
				"namespace", "name", "number", "?since", "?uid"),
			task + "/" + subresourceDiff: get("The files that differ between two moments of a task, by path.",
				"namespace", "name", "?from", "?to", "?path", "?ignored", "?format", "?limit", "?continue", "?uid"),
			task + "/" + subresourceDiff + "/rewind": get("What a rewind of a task would do. The parameters are the fields of spec.rewind; undoLast undoes the newest rewind.",
				"namespace", "name", "?checkpointRef", "?checkpointNumber", "?commit", "?message", "?time", "?messagesBack", "?undoOf", "?undoLast",
				"?scope", "?path", "?preserve", "?branch", "?whenRunning", "?onDrift", "?id", "?limit"),
			namespace + "/timelines": get("What happened to the tasks of a namespace, newest first. With watch, what is added from now on, each as {type: ADDED, object}.",
				"namespace", "?limit", "?continue", "?type", "?since", "?uid", "?contract", "?watch", "?task"),
			namespace + "/search": get("Messages of the namespace's tasks that contain the given words, best first.",
				"namespace", "?q", "?task", "?uid", "?role", "?since", "?limit", "?continue"),
			histories:             list,
			histories + "/{name}": one,
			histories + "/{name}/export": map[string]any{
				"get": operation("The whole history of a task, JSON lines.", linesType, "namespace", "name", "?uid"),
			},
		},
	}
}

// operation describes a request and the type of its response; parameters that begin with
// a question mark are in the query, the others in the path.
func operation(description, answer string, parameters ...string) map[string]any {
	var described []map[string]any
	for _, name := range parameters {
		in := "path"
		if name[0] == '?' {
			in, name = "query", name[1:]
		}
		described = append(described, map[string]any{
			"name": name, "in": in, "required": in == "path", "schema": map[string]any{"type": "string"},
		})
	}
	return map[string]any{
		"description": description,
		"parameters":  described,
		"responses":   map[string]any{"200": map[string]any{"description": "OK", "content": content(answer)}},
	}
}

func content(mediaType string) map[string]any {
	return map[string]any{mediaType: map[string]any{"schema": map[string]any{"type": "object"}}}
}
