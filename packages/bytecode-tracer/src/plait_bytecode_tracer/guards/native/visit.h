/* The tree in full. */

static int visit(Check *check, Node *node, PyObject *value, int pinned);

/* `all_held`: becomes 0 unless `value` holds each child's, so that its version tells all. */
static int visit_all_children(Check *check, Node *node, PyObject *value, int *all_held)
{
    for (Py_ssize_t n = 0; n < node->child_count; n++) {
        Node *child = node->children[n];
        PyObject *found = read_node(check, child, value);
        if (found == NULL) {
            check->failed = child->first_guard;
            return raised();
        }
        int held = visit(check, child, found, 0);
        if (check->remembers)
            child->found = found;
        *all_held = *all_held && is_held(child, value, found);
        Py_DECREF(found); /* what is remembered is used only while something else holds it */
        if (held <= 0)
            return held;
    }
    return 1;
}

/* A guard may run code that changes the holder: then nothing remembered is used. */
static int visit_unsettled_children(Check *check, Node *node, PyObject *holder)
{
    for (Py_ssize_t n = 0; n < node->unsettled_count; n++) {
        Node *child = node->unsettled[n];
        int pinned = version_of(node, holder) == node->version;
        PyObject *found = pinned ? Py_NewRef(child->found) : read_node(check, child, holder);
        if (found == NULL) {
            check->failed = child->first_guard;
            return raised();
        }
        int held = visit(check, child, found, pinned);
        Py_DECREF(found);
        if (held <= 0)
            return held;
    }
    return 1;
}

/* Check a node's guards and all below it. `pinned`: the dict or class that holds the value
 * is as it was when the value passed. */
static int visit(Check *check, Node *node, PyObject *value, int pinned)
{
    uint64_t version = 0;
    int unchanged = 0, all_held = 1;
    if (node->has_version && check->remembers) {
        version = version_of(node, value);
        unchanged = version != 0 && version == node->version;
        if (!unchanged)
            node->version = 0;
    }
    Guard *guards = check->tree->guards;
    for (Py_ssize_t n = node->guards_begin; n < node->guards_end; n++) {
        if ((pinned && guards[n].by_holder) || (unchanged && guards[n].by_itself))
            continue;
        int held = check_guard(check, &guards[n], node, value);
        if (held <= 0) {
            check->failed = n;
            return held;
        }
    }
    if (node->slot >= 0)
        Py_XSETREF(check->held[node->slot], Py_NewRef(value));
    if (unchanged)
        return visit_unsettled_children(check, node, value);
    int held = visit_all_children(check, node, value, &all_held);
    if (held > 0 && check->remembers && all_held)
        node->version = version;
    return held;
}
